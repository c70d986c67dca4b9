//! The one error type: what went wrong, what the caller can do, and the evidence.

use std::fmt;

/// What a caller would do about an error; each kind is one exception class in Python and one exit
/// code on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The spec, a plan file or the command line is wrong: change what was written.
    Spec,
    /// A volume or a server could not be made or kept: change the machine.
    Provision,
    /// The conversation with a server failed: look at the connection.
    Driver,
    /// The workload or its load step failed: look at the workload.
    Workload,
    /// A run directory could not be written or read.
    Store,
    /// The user interrupted; everything of ours has been torn down.
    Interrupted,
}

/// An error in the words of the user: a lower-case message without a final period, perhaps a hint
/// (the next step), perhaps evidence (the last lines of a log, the output of a tool).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The class of the error.
    pub kind: ErrorKind,
    /// What went wrong, in one line.
    pub message: String,
    /// What to do next, in one line.
    pub hint: Option<String>,
    /// Output of a tool or a server that shows the cause.
    pub evidence: Option<String>,
}

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of `kind` that says `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, evidence: None }
    }

    /// The same error with the next step.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same error with what shows the cause.
    #[must_use]
    pub fn evidence(mut self, evidence: impl Into<String>) -> Self {
        self.evidence = Some(evidence.into());
        self
    }

    /// A [`ErrorKind::Spec`] error.
    pub fn spec(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Spec, message)
    }

    /// A [`ErrorKind::Provision`] error.
    pub fn provision(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Provision, message)
    }

    /// A [`ErrorKind::Driver`] error.
    pub fn driver(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Driver, message)
    }

    /// A [`ErrorKind::Workload`] error.
    pub fn workload(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Workload, message)
    }

    /// A [`ErrorKind::Store`] error.
    pub fn store(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Store, message)
    }

    /// The interruption by the user.
    pub fn interrupted() -> Self {
        Self::new(ErrorKind::Interrupted, "interrupted")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
