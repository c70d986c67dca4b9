//! Running a plan: the work goes on in a thread of its own, while the calling thread waits without
//! the GIL, hands events to Python and looks for signals.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use bedplate_app::RunOptions;
use bedplate_core::seam::{Cancel, Event, Observer};
use bedplate_core::{Error, ErrorKind, Result};
use bedplate_results::{phase_name, trust_name};
use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::Plan;
use crate::errors::exception;

/// How often a waiting thread looks for signals.
const TICK: Duration = Duration::from_millis(100);

/// What the worker tells the calling thread.
enum Message {
    Event(Event),
    Ended(Result<PathBuf>),
}

/// Hands events to the calling thread.
struct Forward(Sender<Message>);

impl Observer for Forward {
    fn event(&self, event: &Event) {
        // The calling thread may have given up on a second interrupt; nobody listens then.
        drop(self.0.send(Message::Event(event.clone())));
    }
}

/// Executes a plan below the directory `out` and returns the run's directory.
///
/// `observer` is called with a dict for each event, always from the calling thread. An interrupt,
/// or an exception of the observer, stops the run; it is raised after everything of ours has been
/// torn down. A second interrupt does not wait for that.
#[pyfunction]
#[pyo3(signature = (plan, out, observer=None))]
pub(crate) fn run(
    py: Python<'_>,
    plan: &Plan,
    out: PathBuf,
    observer: Option<&Bound<'_, PyAny>>,
) -> PyResult<PathBuf> {
    let cancel = Cancel::default();
    let mut receiver = start(plan.0.clone(), out, cancel.clone())?;
    let mut stopped_by: Option<PyErr> = None;
    loop {
        let message = py.detach(|| {
            let message = receiver.recv_timeout(TICK);
            (receiver, message)
        });
        receiver = message.0;
        let told = match message.1 {
            Ok(Message::Ended(result)) => return end(py, result, stopped_by),
            Ok(Message::Event(event)) if stopped_by.is_none() => tell(py, observer, &event),
            Ok(Message::Event(_)) | Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("the run ended in a panic, please report it"));
            }
        };
        if let Err(error) = told.and_then(|()| py.check_signals()) {
            if stopped_by.is_some() {
                return Err(PyKeyboardInterrupt::new_err(
                    "interrupted while tearing down; `bedplate clean` removes what is left",
                ));
            }
            cancel.cancel();
            stopped_by = Some(error);
        }
    }
}

fn start(
    plan: bedplate_core::plan::Plan,
    out: PathBuf,
    cancel: Cancel,
) -> PyResult<Receiver<Message>> {
    let (sender, receiver) = channel();
    let observer = Arc::new(Forward(sender.clone()));
    thread::Builder::new().name("bedplate-run".to_owned()).spawn(move || {
        let result = bedplate_app::run(plan, RunOptions { out, observer, cancel })
            .map(|finished| finished.directory);
        drop(sender.send(Message::Ended(result)));
    })?;
    Ok(receiver)
}

/// What the caller gets once the worker has ended.
fn end(py: Python<'_>, result: Result<PathBuf>, stopped_by: Option<PyErr>) -> PyResult<PathBuf> {
    let Some(stopped_by) = stopped_by else {
        return result.map_err(exception);
    };
    if !stopped_by.is_instance_of::<PyKeyboardInterrupt>(py) {
        return Err(stopped_by);
    }
    match result {
        Err(Error { kind: ErrorKind::Interrupted, message, .. }) => {
            Err(PyKeyboardInterrupt::new_err(message))
        }
        Ok(path) => Err(PyKeyboardInterrupt::new_err(format!(
            "interrupted when the run had ended; `bedplate.load_run({:?})` opens it",
            path.display().to_string(),
        ))),
        Err(error) => {
            let interrupt = PyKeyboardInterrupt::new_err(format!("interrupted; then {error}"));
            interrupt.set_cause(py, Some(exception(error)));
            Err(interrupt)
        }
    }
}

fn tell(py: Python<'_>, observer: Option<&Bound<'_, PyAny>>, event: &Event) -> PyResult<()> {
    if let Some(observer) = observer {
        observer.call1((event_dict(py, event)?,))?;
    }
    Ok(())
}

/// An event as the dict that `bedplate._native.Event` describes.
fn event_dict<'py>(py: Python<'py>, event: &Event) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    match event {
        Event::RunStarted { trials, estimated_s } => {
            dict.set_item("event", "run_started")?;
            dict.set_item("trials", trials)?;
            dict.set_item("estimated_s", estimated_s)?;
        }
        Event::PhaseStarted { trial, cell, phase, expected_s } => {
            dict.set_item("event", "phase_started")?;
            dict.set_item("trial", trial)?;
            dict.set_item("cell", cell)?;
            dict.set_item("phase", phase_name(*phase))?;
            dict.set_item("expected_s", expected_s)?;
        }
        Event::Progress { fraction } => {
            dict.set_item("event", "progress")?;
            dict.set_item("fraction", fraction)?;
        }
        Event::Second { committed } => {
            dict.set_item("event", "second")?;
            dict.set_item("committed", committed)?;
        }
        Event::TrialEnded { record } => {
            dict.set_item("event", "trial_ended")?;
            dict.set_item("trial", record.id.trial)?;
            dict.set_item("cell", &record.cell_label)?;
            dict.set_item("trust", trust_name(record.trust.level))?;
            dict.set_item("tps", record.tps())?;
        }
        Event::Note { text } => {
            dict.set_item("event", "note")?;
            dict.set_item("text", text)?;
        }
    }
    Ok(dict)
}
