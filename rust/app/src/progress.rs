//! Progress on a terminal: one bar for the run with its phase; plain lines where there is no
//! terminal.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use bedplate_core::record::{Phase, TrialRecord};
use bedplate_core::seam::{Event, Observer};
use bedplate_results::{phase_name, trust_name};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shows a run on standard error.
pub(crate) struct Terminal {
    bar: ProgressBar,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    started: Option<Instant>,
    estimated_s: f64,
    trials: u32,
    done: u32,
    text: String,
}

impl Terminal {
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len} {msg}") {
            bar.set_style(style);
        }
        Self { bar, state: Mutex::new(State::default()) }
    }

    fn say(&self, line: &str) {
        if self.bar.is_hidden() {
            #[expect(clippy::print_stderr, reason = "progress where there is no terminal")]
            {
                eprintln!("{line}");
            }
        } else {
            self.bar.println(line);
        }
    }

    fn show(&self, state: &State, detail: &str) {
        let left = state.started.map_or(0.0, |started| {
            remaining_s(started.elapsed(), state.estimated_s, state.done, state.trials)
        });
        let eta = if left > 0.0 { format!("  about {left:.0} s left") } else { String::new() };
        self.bar.set_message(format!("{}{detail}{eta}", state.text));
    }
}

/// Seconds left: by the estimate until a trial is done, then by the trials that are.
fn remaining_s(elapsed: Duration, estimated_s: f64, done: u32, trials: u32) -> f64 {
    let elapsed = elapsed.as_secs_f64();
    let total = if done == 0 { estimated_s } else { elapsed / f64::from(done) * f64::from(trials) };
    (total - elapsed).max(0.0)
}

impl Observer for Terminal {
    fn event(&self, event: &Event) {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match event {
            Event::RunStarted { trials, estimated_s } => {
                state.started = Some(Instant::now());
                state.estimated_s = *estimated_s;
                state.trials = *trials;
                self.bar.set_length(u64::from(*trials));
                self.say(&format!("{trials} trials, about {estimated_s:.0} s"));
            }
            Event::PhaseStarted { trial, cell, phase, expected_s } => {
                let length =
                    expected_s.map_or_else(String::new, |seconds| format!(" ({seconds} s)"));
                state.text = format!("trial {trial} {cell}: {}{length}", phase_name(*phase));
                self.show(&state, "");
                if self.bar.is_hidden() && *phase == Phase::Measure {
                    self.say(&state.text);
                }
            }
            Event::Progress { fraction } => {
                self.show(&state, &format!(" {:.0} %", fraction * 100.0));
            }
            Event::Second { committed } => self.show(&state, &format!(" {committed} tps")),
            Event::TrialEnded { record } => {
                state.done += 1;
                self.bar.set_position(u64::from(state.done));
                self.say(&ended(record));
                if state.done == state.trials {
                    self.bar.finish_and_clear();
                }
            }
            Event::Note { text } => self.say(text),
        }
    }
}

/// Says what the user should know, a thing that is left say, and nothing of the progress.
pub(crate) struct NotesAlone;

impl Observer for NotesAlone {
    fn event(&self, event: &Event) {
        if let Event::Note { text } = event {
            #[expect(clippy::print_stderr, reason = "standard error is where notes go")]
            {
                eprintln!("{text}");
            }
        }
    }
}

fn ended(record: &TrialRecord) -> String {
    let figure = match record.tps() {
        Some(tps) => format!("{tps:.0} tps"),
        None => record.trust.reasons.first().cloned().unwrap_or_default(),
    };
    let trust = trust_name(record.trust.level);
    format!("trial {} {}: {trust}, {figure}", record.id.trial, record.cell_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_follows_the_trials_once_there_are_some() {
        let elapsed = Duration::from_secs(30);
        assert_eq!(remaining_s(elapsed, 100.0, 0, 4), 70.0);
        assert_eq!(remaining_s(elapsed, 100.0, 2, 4), 30.0);
        assert_eq!(remaining_s(elapsed, 10.0, 0, 4), 0.0);
    }
}
