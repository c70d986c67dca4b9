//! Errors as the exceptions that `bedplate.exceptions` defines.

use bedplate_core::{Error, ErrorKind};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::import_exception;
use pyo3::prelude::*;

import_exception!(bedplate.exceptions, SpecError);
import_exception!(bedplate.exceptions, ProvisionError);
import_exception!(bedplate.exceptions, DriverError);
import_exception!(bedplate.exceptions, WorkloadError);
import_exception!(bedplate.exceptions, StoreError);

/// The exception of an error: a class by its kind, with the message, the hint and the evidence.
pub(crate) fn exception(error: Error) -> PyErr {
    let Error { kind, message, hint, evidence } = error;
    let args = (message, hint, evidence);
    match kind {
        ErrorKind::Spec => SpecError::new_err(args),
        ErrorKind::Provision => ProvisionError::new_err(args),
        ErrorKind::Driver => DriverError::new_err(args),
        ErrorKind::Workload => WorkloadError::new_err(args),
        ErrorKind::Store => StoreError::new_err(args),
        ErrorKind::Interrupted => PyKeyboardInterrupt::new_err(args.0),
    }
}
