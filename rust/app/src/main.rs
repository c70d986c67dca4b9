//! The command `bedplate`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let status = bedplate_app::cli(std::env::args().collect());
    ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX))
}
