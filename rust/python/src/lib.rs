//! The bridge to Python: the module `bedplate._native`. No logic lives here.
//!
//! ```text
//! lib.rs     the module and its classes Plan, Run, Table
//! run.rs     the one call that takes long: waits without the GIL and checks signals
//! errors.rs  errors as the exceptions of bedplate.exceptions
//! ```

mod errors;
mod run;

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::errors::exception;

/// The native part of `bedplate`.
#[pymodule(gil_used = false)]
mod _native {
    use super::*;

    #[pymodule_export]
    use super::{Plan, Run, Table, cli, plan, plan_file};

    #[pymodule_export]
    use crate::run::run;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("DEBUG_BUILD", cfg!(debug_assertions))
    }
}

/// A spec with every default filled.
#[pyclass(frozen, module = "bedplate")]
struct Plan(bedplate_core::plan::Plan);

#[pymethods]
impl Plan {
    /// The plan as JSON; equal plans have equal texts.
    fn to_json(&self) -> PyResult<String> {
        serde_json::to_string(&self.0).map_err(|error| {
            exception(bedplate_core::Error::store(format!("the plan cannot be written: {error}")))
        })
    }

    /// The plan as text to read: cells, defaults, estimates.
    fn render(&self) -> String {
        self.0.render()
    }

    /// SHA-256 of the plan's canonical JSON.
    #[getter]
    fn plan_id(&self) -> String {
        self.0.plan_id()
    }

    /// Name of the study.
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    /// The cells that cannot be made here: label to reason, in the order of the spec.
    #[getter]
    fn unavailable<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let reasons = PyDict::new(py);
        for cell in &self.0.unavailable {
            reasons.set_item(&cell.label, &cell.reason)?;
        }
        Ok(reasons)
    }

    fn __repr__(&self) -> String {
        let trials: usize = self.0.design.order.iter().map(Vec::len).sum();
        format!(
            "Plan({:?}, cells={}, unavailable={}, trials={trials}, plan_id={:.12})",
            self.0.name,
            self.0.cells.len(),
            self.0.unavailable.len(),
            self.0.plan_id(),
        )
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    fn __hash__(&self) -> u64 {
        let id = self.0.plan_id();
        u64::from_str_radix(id.get(..16).unwrap_or_default(), 16).unwrap_or_default()
    }
}

/// A table of results.
#[pyclass(frozen, module = "bedplate._native")]
struct Table(bedplate_results::DataFrame);

#[pymethods]
impl Table {
    /// The table over Arrow's C stream interface. The types are fixed, so a requested schema is
    /// left to the reader, as the interface allows.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        // The capsule owns the stream; dropping it releases the stream unless a reader moved it
        // out, which is what the interface asks of a destructor.
        let stream = bedplate_results::arrow_stream(&self.0);
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }

    fn __len__(&self) -> usize {
        self.0.height()
    }
}

/// A run directory that was read.
#[pyclass(frozen, module = "bedplate._native")]
struct Run {
    run: bedplate_results::Run,
    tables: Tables,
}

/// Built once, when the directory is read.
struct Tables {
    trials: Py<Table>,
    intervals: Py<Table>,
    instances: Py<Table>,
    latency: Py<Table>,
    metrics: Py<Table>,
}

#[pymethods]
impl Run {
    /// Reads a run directory.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let (run, frames) = py
            .detach(|| {
                let run = bedplate_results::Run::open(&path)?;
                let frames = bedplate_results::frames(&run)?;
                Ok((run, frames))
            })
            .map_err(exception)?;
        let table = |frame| Py::new(py, Table(frame));
        let tables = Tables {
            trials: table(frames.trials)?,
            intervals: table(frames.intervals)?,
            instances: table(frames.instances)?,
            latency: table(frames.latency)?,
            metrics: table(frames.metrics)?,
        };
        Ok(Self { run, tables })
    }

    /// Where the directory is.
    #[getter]
    fn path(&self) -> PathBuf {
        self.run.path.clone()
    }

    /// Identifier of the run.
    #[getter]
    fn run_id(&self) -> &str {
        &self.run.run_id
    }

    /// Whether every planned trial is finished.
    #[getter]
    fn complete(&self) -> bool {
        self.run.complete
    }

    /// Trials the plan asks for.
    #[getter]
    fn planned(&self) -> usize {
        self.run.planned()
    }

    /// What was to be executed.
    #[getter]
    fn plan(&self) -> Plan {
        Plan(self.run.plan.clone())
    }

    /// Machine and software before the run: name to value.
    #[getter]
    fn environment(&self) -> std::collections::BTreeMap<String, String> {
        self.run.environment.facts.clone()
    }

    /// The server's log of a trial.
    fn server_log(&self, trial: u32) -> PyResult<String> {
        self.run.server_log(trial).map_err(exception)
    }

    /// One row a finished trial.
    #[getter]
    fn trials(&self, py: Python<'_>) -> Py<Table> {
        self.tables.trials.clone_ref(py)
    }

    /// One row a second.
    #[getter]
    fn intervals(&self, py: Python<'_>) -> Py<Table> {
        self.tables.intervals.clone_ref(py)
    }

    /// One row an instance of the workload in a finished trial.
    #[getter]
    fn instances(&self, py: Python<'_>) -> Py<Table> {
        self.tables.instances.clone_ref(py)
    }

    /// Histograms of the measured windows.
    #[getter]
    fn latency(&self, py: Python<'_>) -> Py<Table> {
        self.tables.latency.clone_ref(py)
    }

    /// One row a reading of a metric.
    #[getter]
    fn metrics(&self, py: Python<'_>) -> Py<Table> {
        self.tables.metrics.clone_ref(py)
    }
}

/// Fills the defaults of a spec given as JSON.
#[pyfunction]
fn plan(py: Python<'_>, spec_json: &str) -> PyResult<Plan> {
    py.detach(|| bedplate_app::plan(spec_json)).map(Plan).map_err(exception)
}

/// Fills the defaults of a spec in a file, TOML or JSON.
#[pyfunction]
fn plan_file(py: Python<'_>, path: PathBuf) -> PyResult<Plan> {
    py.detach(|| bedplate_app::plan_file(&path)).map(Plan).map_err(exception)
}

/// The command line, given all its words; returns the exit code.
#[pyfunction]
fn cli(py: Python<'_>, args: Vec<String>) -> i32 {
    py.detach(|| bedplate_app::cli(args))
}
