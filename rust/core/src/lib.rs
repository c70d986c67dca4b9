//! Bedplate's core: what the program thinks. No input or output happens here.
//!
//! ```text
//! spec ──► plan ──► trials ──► samples ──► run directory ──► frames
//! ```
//!
//! A [`spec::Spec`] is what the user wrote, a [`plan::Plan`] is the same with every default filled.
//! [`run::execute`] turns a plan into trials through the seams in [`seam`], whose implementations
//! live in the adapters; what was measured goes to a [`seam::RunSink`].

pub mod capabilities;
pub mod error;
pub mod plan;
pub mod record;
pub mod resolve;
pub mod rng;
pub mod seam;
pub mod sizing;
pub mod spec;

pub use error::{Error, ErrorKind, Result};
