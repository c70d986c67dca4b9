//! Wires core, adapters and results together, and speaks with people on the command line.
//!
//! The functions here are what both front doors call: the command `bedplate` and the Python module.

mod cli;
mod images;
mod progress;
mod status;
mod table;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate_adapters::drivers::{IoMethod, MariadbDriver, PostgresDriver};
use bedplate_adapters::monitor::HostMonitor;
use bedplate_adapters::{capabilities, engines, ledger, sites};
use bedplate_core::load::LoadDriver;
use bedplate_core::plan::{EngineKind, EnginePlan, Plan};
use bedplate_core::run::{RunSummary, Study, execute};
use bedplate_core::seam::{Cancel, Event, Observer};
use bedplate_core::spec::Spec;
use bedplate_core::{Error, ErrorKind, Result, resolve};
use bedplate_results::{RunDirectory, RunEnd};

pub use cli::cli;

/// What a run needs besides its plan.
pub struct RunOptions {
    /// Directory below which the run's directory is made.
    pub out: PathBuf,
    /// Who is told what happens.
    pub observer: Arc<dyn Observer>,
    /// The user's wish to stop.
    pub cancel: Cancel,
}

/// A finished run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// The run's directory.
    pub directory: PathBuf,
    /// How its trials ended.
    pub summary: RunSummary,
}

/// The plan of a spec given as JSON text.
///
/// # Errors
/// A spec that is wrong, or asks for what this machine does not offer.
pub fn plan(spec_json: &str) -> Result<Plan> {
    resolve_here(&Spec::from_json(spec_json)?)
}

/// The plan of a spec in a file, TOML or JSON.
///
/// # Errors
/// As [`plan`], and a file that cannot be read.
pub fn plan_file(path: &Path) -> Result<Plan> {
    let bytes = std::fs::read(path)
        .map_err(|error| Error::spec(format!("cannot read `{}`: {error}", path.display())))?;
    resolve_here(&Spec::from_bytes(&bytes, &path.display().to_string())?)
}

/// A plan for people: the text of `bedplate plan`.
pub fn render_plan(plan: &Plan) -> String {
    plan.render()
}

/// Executes a plan and returns the directory of its results.
///
/// What a killed run left behind is undone first.
///
/// # Errors
/// What the preflight finds; a store that fails; an interruption, whose message names the directory
/// with what was finished.
pub fn run(plan: Plan, options: RunOptions) -> Result<Finished> {
    runtime()?.block_on(run_here(plan, options))
}

async fn run_here(plan: Plan, options: RunOptions) -> Result<Finished> {
    let state_dir = capabilities::default_state_dir();
    let RunOptions { out, observer, cancel } = options;
    for note in sweep_notes(&ledger::sweep(&state_dir).await?) {
        observer.event(&Event::Note { text: note });
    }
    let site = sites::site(&plan, &state_dir)?;
    // First of all, so that a plan that cannot be carried out leaves no run directory behind.
    cancel.guard(site.preflight(&plan)).await?;
    let mut directory = RunDirectory::create(&out, &plan, &site.environment().await)?;
    let run_id = directory.run_id().to_owned();
    let study = Study {
        plan: &plan,
        run_id: &run_id,
        site: site.as_ref(),
        driver: &driver,
        monitor: &HostMonitor,
        observer: observer.as_ref(),
        cancel: &cancel,
    };
    match execute(&study, &mut directory).await {
        Ok(summary) => {
            directory.environment_after(&site.environment().await)?;
            Ok(Finished { directory: directory.finish(RunEnd::Complete)?, summary })
        }
        Err(error) => {
            let path = directory.finish(RunEnd::Stopped)?;
            Err(name_directory(error, &path))
        }
    }
}

/// The client side of an engine.
fn driver(engine: &EnginePlan) -> Result<Arc<dyn LoadDriver>> {
    let io = IoMethod::of_this_machine();
    Ok(match engine.kind {
        EngineKind::Postgres => Arc::new(PostgresDriver::new(io)),
        EngineKind::MariaDb => Arc::new(MariadbDriver::new(io, engines::client_tls(engine)?)),
    })
}

/// Says where the finished trials of a run that ended early are.
fn name_directory(mut error: Error, path: &Path) -> Error {
    if error.kind == ErrorKind::Interrupted {
        error.message = format!(
            "interrupted; everything of ours is torn down, and `{}` holds what was finished \
             (open it with `bedplate.load_run`)",
            path.display()
        );
    }
    error
}

fn sweep_notes(report: &ledger::SweepReport) -> Vec<String> {
    let undone =
        report.undone.iter().map(|what| format!("removed what an earlier run left: {what}"));
    let failed = report.failed.iter().map(|what| format!("still left of an earlier run: {what}"));
    undone.chain(failed).collect()
}

fn resolve_here(spec: &Spec) -> Result<Plan> {
    let state_dir = capabilities::default_state_dir();
    let offered = runtime()?.block_on(capabilities::capabilities(
        &state_dir,
        spec.work_dir.as_deref(),
        &spec.devices(),
    ));
    resolve::plan(spec, &offered)
}

/// The runtime of everything but the measured load, whose threads have none.
fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Error::provision(format!("cannot start the runtime: {error}")))
}
