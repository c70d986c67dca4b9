//! The command line.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate_adapters::{capabilities, doctor, ledger};
use bedplate_core::plan::Plan;
use bedplate_core::seam::{Cancel, Observer};
use bedplate_core::{Error, Result};
use bedplate_results::{Run, instance_rows, trial_rows};
use clap::{Parser, Subcommand};

use crate::progress::{NotesAlone, Terminal};
use crate::{Finished, RunOptions, images, plan_file, run, runtime, status, table};

/// Bedplate measures what a database engine gets from the storage under it.
#[derive(Parser)]
#[command(name = "bedplate", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Execute a spec and show its trials
    Run {
        /// The spec: a .toml or .json file
        spec: PathBuf,
        /// Directory below which the run's directory is made
        #[arg(long, default_value = "runs")]
        out: PathBuf,
        /// Show nothing until the end but what you should know
        #[arg(long)]
        quiet: bool,
    },
    /// Show what a spec means with every default filled, and what it will take
    Plan {
        /// The spec: a .toml or .json file
        spec: PathBuf,
        /// As JSON, for machines
        #[arg(long)]
        json: bool,
    },
    /// Show the trials of a run directory
    Show {
        /// The run's directory
        directory: PathBuf,
    },
    /// The images that containers are made from
    Images {
        #[command(subcommand)]
        verb: ImagesVerb,
    },
    /// Say what is available here, and how to get what is not
    Doctor {
        /// As JSON, for machines
        #[arg(long)]
        json: bool,
    },
    /// Remove what a killed run left behind; nothing else is touched
    Clean,
}

#[derive(Subcommand)]
enum ImagesVerb {
    /// Pull the pinned images; where no registry answers, make them from Debian's packages
    Get {
        /// postgres, storage-helper; all when none is named
        names: Vec<String>,
    },
    /// Make the images from Debian's packages
    Build {
        /// postgres, storage-helper; all when none is named
        names: Vec<String>,
    },
}

/// Runs the command line `arguments` (the program's name first) and returns its exit code: 0 done,
/// 2 usage or a bad spec, 4 a trial ended void, 5 nothing could be measured, 130 interrupted.
pub fn cli(arguments: Vec<String>) -> i32 {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are "errors" of clap, too, that go to standard output.
            let _ = error.print();
            return error.exit_code();
        }
    };
    if cfg!(debug_assertions) {
        say("this is a debug build: its numbers say nothing; build it with --release");
    }
    match execute(arguments.verb) {
        Ok(status) => status,
        Err(error) => {
            complain(&error);
            status::of_error(&error)
        }
    }
}

fn execute(verb: Verb) -> Result<i32> {
    match verb {
        Verb::Run { spec, out, quiet } => run_spec(&spec, out, quiet),
        Verb::Plan { spec, json } => show_plan(&plan_file(&spec)?, json),
        Verb::Show { directory } => show_trials(&directory),
        Verb::Images { verb } => {
            let runtime = runtime()?;
            match verb {
                ImagesVerb::Get { names } => runtime.block_on(images::get(&names))?,
                ImagesVerb::Build { names } => runtime.block_on(images::build(&names))?,
            }
            Ok(status::DONE)
        }
        Verb::Doctor { json } => show_doctor(json),
        Verb::Clean => clean(),
    }
}

fn run_spec(spec: &Path, out: PathBuf, quiet: bool) -> Result<i32> {
    let plan = plan_file(spec)?;
    let cancel = Cancel::default();
    let observer: Arc<dyn Observer> =
        if quiet { Arc::new(NotesAlone) } else { Arc::new(Terminal::new()) };
    let watcher = watch_signals(cancel.clone())?;
    let outcome = run(plan, RunOptions { out, observer, cancel });
    watcher.shutdown_background();
    let Finished { directory, summary } = outcome?;
    show_trials(&directory)?;
    print(&format!("results in {}", directory.display()));
    Ok(status::of_summary(&summary))
}

/// Cancels on Ctrl-C and on SIGTERM. The signals are caught from now on, before anything is made.
fn watch_signals(cancel: Cancel) -> Result<tokio::runtime::Runtime> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = runtime()?;
    let guard = runtime.enter();
    let caught = |kind| {
        signal(kind).map_err(|error| Error::provision(format!("cannot catch signals: {error}")))
    };
    let (mut interrupt, mut terminate) =
        (caught(SignalKind::interrupt())?, caught(SignalKind::terminate())?);
    drop(guard);
    runtime.spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        say("stopping: tearing down what was made");
        cancel.cancel();
    });
    Ok(runtime)
}

fn show_plan(plan: &Plan, json: bool) -> Result<i32> {
    if json {
        print(&to_json(plan)?);
    } else {
        print(plan.render().trim_end());
    }
    Ok(status::DONE)
}

fn show_trials(directory: &Path) -> Result<i32> {
    let run = Run::open(directory)?;
    print(&table::trials(&trial_rows(&run)?, &instance_rows(&run)));
    if !run.plan.unavailable.is_empty() {
        print(run.plan.render_unavailable().trim_end());
    }
    if !run.complete {
        print("the run is not complete: it was interrupted, or is still going on");
    }
    Ok(status::DONE)
}

fn show_doctor(json: bool) -> Result<i32> {
    let checks = runtime()?.block_on(doctor::doctor(&capabilities::default_state_dir()));
    if json {
        print(&to_json(&checks)?);
        return Ok(status::DONE);
    }
    for check in checks {
        print(&format!("{:<11}  {}: {}", check.state.word(), check.name, check.detail));
        if let Some(remedy) = check.remedy {
            print(&format!("{:<11}  → {remedy}", ""));
        }
    }
    Ok(status::DONE)
}

fn clean() -> Result<i32> {
    let report = runtime()?.block_on(ledger::sweep(&capabilities::default_state_dir()))?;
    for what in &report.undone {
        print(&format!("removed {what}"));
    }
    if report.undone.is_empty() && report.failed.is_empty() {
        print("nothing of ours is left");
    }
    if report.failed.is_empty() {
        return Ok(status::DONE);
    }
    Err(Error::provision(format!("{} things are still left", report.failed.len()))
        .evidence(report.failed.join("\n"))
        .hint("run `bedplate clean` again once what holds them has ended"))
}

fn to_json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string_pretty(value)
        .map_err(|error| Error::store(format!("cannot be written as JSON: {error}")))
}

/// What was asked for goes to standard output.
#[expect(clippy::print_stdout, reason = "this is the command line")]
fn print(text: &str) {
    println!("{text}");
}

/// What happens on the way goes to standard error.
#[expect(clippy::print_stderr, reason = "this is the command line")]
pub(crate) fn say(text: &str) {
    eprintln!("{text}");
}

fn complain(error: &Error) {
    say(&format!("error: {error}"));
    if let Some(evidence) = &error.evidence {
        say(&format!("\n{}", evidence.trim_end()));
    }
    if let Some(hint) = &error.hint {
        say(&format!("\nhint: {hint}"));
    }
}
