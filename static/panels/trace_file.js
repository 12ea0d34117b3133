// Reading of files that the page opens. Operators and kernels, which are most events of a torch.profiler trace, are not
// sent.

const MOST_READ_BYTES = 400e6; // largest size of a file that is reduced before it is sent

const BULK = new Set(
  (
    "cpu_op cpu_instant_event kernel cuda_runtime cuda_driver python_function ac2g fwdbwd " +
    "gpu_memcpy gpu_memset overhead Trace"
  ).split(" "),
); // categories of events that contain no actions of a schedule

/**
 * The text of a file. A trace above the limit is sent without its operators and kernels. Null if the file is too large.
 * @param {File} file @param {number} limit in bytes
 */
export async function readFile(file, limit) {
  if (file.size <= limit) return file.text();
  if (!file.name.endsWith(".json") || file.size > MOST_READ_BYTES) return null;
  return withoutBulk(await file.text());
}

/** A trace without events that contain no actions; other text is returned unchanged. @param {string} text */
export function withoutBulk(text) {
  try {
    const { traceEvents, ...rest } = JSON.parse(text);
    const ranges = traceEvents.filter(
      (/** @type {{ph: string, cat?: string}} */ { ph, cat }) => ph === "X" && !BULK.has(cat ?? ""),
    );
    return JSON.stringify({ ...rest, traceEvents: ranges });
  } catch {
    return text;
  }
}
