//! Bedplate's memory: the run directory, and the tables that come of it.
//!
//! ```text
//! RUN/run.json  plan.json  environment.json
//!     trials/t0000/record.json  intervals.jsonl  metrics.jsonl  server.log
//!     trials.parquet  intervals.parquet  latency.parquet  metrics.parquet  COMPLETE
//! ```
//!
//! A [`RunDirectory`] is written trial by trial while the run goes on; a [`Run`] is what anyone
//! reads afterwards, complete or not. [`trial_rows`] computes every number of a trial once, and
//! [`frames`], the Parquet files, the command line's table and Python all show those numbers.
//! [`columns`] says what each column means.
//!
//! A trial is finished when its `record.json` was renamed into place; before that nothing of it is
//! read. A run is complete when every trial of its plan is finished and `COMPLETE` was renamed into
//! place, after the tables.

pub mod columns;
mod directory;
mod frames;
mod read;
mod rows;
mod stored;

pub use directory::{RunDirectory, RunEnd};
pub use frames::{ArrowArrayStream, DataFrame, Frames, arrow_stream, frames};
pub use read::{IntervalRow, Run, Trial};
pub use rows::{
    InstanceRow, Quantiles, TrialRow, instance_rows, phase_name, trial_rows, trust_name,
};
pub use stored::{RUN_VERSION, Totals, check_totals};

#[cfg(test)]
mod tests;
