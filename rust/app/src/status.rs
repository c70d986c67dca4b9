//! Exit codes, in one place.

use bedplate_core::run::RunSummary;
use bedplate_core::{Error, ErrorKind};

/// Done, or pass.
pub(crate) const DONE: i32 = 0;
/// Usage, or a bad spec.
pub(crate) const BAD_SPEC: i32 = 2;
/// A trial ended void.
pub(crate) const INVALID: i32 = 4;
/// Nothing could be measured.
pub(crate) const NOTHING_MEASURED: i32 = 5;
/// Interrupted.
pub(crate) const INTERRUPTED: i32 = 130;

/// The exit code of a run that came to its end.
pub(crate) fn of_summary(summary: &RunSummary) -> i32 {
    let void = u32::try_from(summary.void.len()).unwrap_or(u32::MAX);
    if summary.usable == 0 && summary.unmeasured == void {
        NOTHING_MEASURED
    } else if void > 0 {
        INVALID
    } else {
        DONE
    }
}

/// The exit code of an error.
pub(crate) fn of_error(error: &Error) -> i32 {
    match error.kind {
        ErrorKind::Spec => BAD_SPEC,
        ErrorKind::Interrupted => INTERRUPTED,
        ErrorKind::Provision | ErrorKind::Driver | ErrorKind::Workload | ErrorKind::Store => {
            NOTHING_MEASURED
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_by_its_worst_trial() {
        let summary = |usable, void: u32, unmeasured| RunSummary {
            usable,
            void: (0..void).map(|trial| (trial, String::new())).collect(),
            unmeasured,
        };
        assert_eq!(of_summary(&summary(2, 0, 0)), 0);
        assert_eq!(of_summary(&summary(1, 1, 1)), 4);
        assert_eq!(of_summary(&summary(0, 1, 0)), 4);
        assert_eq!(of_summary(&summary(0, 2, 2)), 5);
    }
}
