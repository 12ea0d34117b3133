// What the administration page receives from Python (designer/pages/admin_page.py).

import type { Model } from "../kit/types";

export interface AdminRow {
  id: string;
  cells: string[];
  /** Name of what the button stops. */
  name: string;
  question: string;
}

export interface AdminTable {
  kind: string;
  title: string;
  columns: string[];
  rows: AdminRow[];
  /** Text where there are no rows. */
  empty: string;
  /** Label of the buttons; empty for none. */
  action: string;
}

export interface AdminState {
  machine: [string, string][];
  tables: AdminTable[];
}

export interface AdminModel extends Model {
  state: string;
}
