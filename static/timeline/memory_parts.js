// Memory by category, which the page has for few meshes.

/** @import { Layer } from "./data.js" */

/**
 * The sum of each category of memory and those below it, after each change.
 * @param {Layer} layer @returns {Float32Array[]}
 */
export function memoryLevels(layer) {
  return layer.once("memoryLevels", () => {
    /** @type {Float32Array[]} */
    const levels = [];
    for (const part of layer.memoryParts) {
      const below = levels.at(-1);
      levels.push(below ? part.map((bytes, at) => bytes + below[at]) : part);
    }
    return levels;
  });
}

/**
 * The categories of a rank's memory at a tick, with their bytes.
 * @param {Layer} layer @param {number} rank @param {number} tick
 */
export function memoryPartsAt(layer, rank, tick) {
  const at = layer.memoryChange(rank, tick);
  return layer.memory_kinds
    .map((kind, number) => ({ kind, bytes: layer.memoryParts[number][at] }))
    .filter(({ bytes }) => bytes >= 1);
}
