// What Grafana's own types say of a dashboard: a program that only a type checker reads. check_dashboard.py puts
// deploy/grafana/numaserve.json behind it as a literal, so that a name that Grafana does not know is an error too.

import type { Dashboard, FieldConfig, FieldConfigSource, Panel, RowPanel } from "@grafana/schema";
import type { Options as Stat } from "@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type {
  FieldConfig as Line,
  Options as Lines,
} from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

// The types have enums where JSON has their values.
type Json<T> = T extends string
  ? `${T}`
  : T extends number | boolean | null | undefined
    ? T
    : T extends readonly (infer Item)[]
      ? Json<Item>[]
      : T extends object
        ? { [Name in keyof T]: Json<T[Name]> }
        : T;

type Drawn<Kind extends string, Options, Custom> = Omit<Panel, "type" | "options" | "fieldConfig"> & {
  type: Kind;
  options: Options;
  fieldConfig: Omit<FieldConfigSource, "defaults"> & { defaults: Omit<FieldConfig, "custom"> & { custom?: Custom } };
};
type Row = Omit<RowPanel, "panels"> & { panels: [] };
type Panels = Row | Drawn<"stat", Stat, never> | Drawn<"timeseries", Lines, Line>;

const dashboard: Json<Omit<Dashboard, "panels">> & { panels: Json<Panels>[] } =
