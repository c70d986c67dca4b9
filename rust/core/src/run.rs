//! The execution of a plan: trials in the order of the plan, each torn down whatever became of it.

use std::sync::Arc;
use std::time::Instant;

use crate::error::{Error, ErrorKind, Result};
use crate::load::LoadDriver;
use crate::plan::{EnginePlan, Plan};
use crate::record::{Phase, TrialId, TrialRecord, TrustLevel};
use crate::sampler::Monitor;
use crate::seam::{Cancel, Event, Observer, RunSink, Site};
use crate::trial;

/// Everything a run needs besides the place its results go to.
pub struct Study<'a> {
    /// What is executed.
    pub plan: &'a Plan,
    /// Identifier of the run, in lower-case letters and digits: part of every resource's name.
    pub run_id: &'a str,
    /// Where it is executed.
    pub site: &'a dyn Site,
    /// Gives the client side of the load for an engine.
    pub driver: &'a (dyn Fn(&EnginePlan) -> Result<Arc<dyn LoadDriver>> + Sync),
    /// Reads the machine once a second.
    pub monitor: &'a dyn Monitor,
    /// Who is told.
    pub observer: &'a dyn Observer,
    /// The user's wish to stop.
    pub cancel: &'a Cancel,
}

/// How a run ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunSummary {
    /// Trials that ended sound or with a caveat.
    pub usable: u32,
    /// Trials that ended void, with their first reason.
    pub void: Vec<(u32, String)>,
    /// Void trials that never came to measuring.
    pub unmeasured: u32,
}

/// Executes the plan; results go to `sink` trial by trial.
///
/// A trial that fails is void and the run goes on: what cannot be measured on one storage may well
/// be measured on the next. Only the user, or a sink that cannot store, ends a run early. The site's
/// preflight is the caller's, who has nowhere to store anything before it.
///
/// # Errors
/// An interruption; a sink that fails.
pub async fn execute(study: &Study<'_>, sink: &mut dyn RunSink) -> Result<RunSummary> {
    let trials: usize = study.plan.design.order.iter().map(Vec::len).sum();
    study.observer.event(&Event::RunStarted {
        trials: u32::try_from(trials).unwrap_or(u32::MAX),
        estimated_s: study.plan.estimate().duration_s,
    });
    let mut summary = RunSummary::default();
    let mut number = 0;
    for (block, order) in (0_u32..).zip(&study.plan.design.order) {
        for &cell in order {
            let id = TrialId { run: study.run_id.to_owned(), trial: number, block, cell };
            let record = one_trial(study, id, sink).await?;
            match record.trust.level {
                TrustLevel::Void => {
                    let reason = record.trust.reasons.first().cloned().unwrap_or_default();
                    summary.void.push((number, reason));
                    summary.unmeasured += u32::from(record.window_s() == 0.0);
                }
                TrustLevel::Sound | TrustLevel::Caveat => summary.usable += 1,
            }
            study.observer.event(&Event::TrialEnded { record: Box::new(record) });
            number += 1;
        }
    }
    Ok(summary)
}

/// One trial and its end.
async fn one_trial(study: &Study<'_>, id: TrialId, sink: &mut dyn RunSink) -> Result<TrialRecord> {
    let cell = &study.plan.cells[id.cell];
    sink.trial_started(&id)?;
    let mut record = trial::blank(
        id,
        cell,
        (study.driver)(&cell.engine)?.name(),
        jiff::Timestamp::now().to_string(),
    );
    let mut log = String::new();
    let outcome = trial::run(study, cell, &mut record, &mut log, sink).await;
    let undoing = Instant::now();
    let torn_down = study.site.tear_down(&record.id).await;
    record.phase_s.push((Phase::Teardown, undoing.elapsed().as_secs_f64()));
    if study.cancel.is_cancelled() {
        torn_down?;
        return Err(Error::interrupted());
    }
    if let Err(error) = outcome {
        if error.kind == ErrorKind::Store {
            return Err(error);
        }
        record.trust.lower(TrustLevel::Void, error.message.clone());
        record.error = Some(match (&error.hint, &error.evidence) {
            (_, Some(evidence)) => format!("{}\n{evidence}", error.message),
            (Some(hint), None) => format!("{}\nhint: {hint}", error.message),
            (None, None) => error.message,
        });
    }
    if let Err(error) = torn_down {
        // The ledger keeps what is left, so that the next start or `bedplate clean` tries again.
        let text = format!("not everything could be torn down: {error}; run `bedplate clean`");
        study.observer.event(&Event::Note { text });
    }
    sink.trial_ended(&record, &log)?;
    Ok(record)
}
