//! Everything that touches the world: drivers, engines, storage, sites.

pub mod capabilities;
pub mod command;
mod conditions;
pub mod docker;
pub mod doctor;
pub mod drivers;
pub mod engines;
pub mod environment;
pub mod images;
pub mod ledger;
pub mod monitor;
pub mod mountinfo;
pub mod sites;
pub mod storage;
mod undo;
