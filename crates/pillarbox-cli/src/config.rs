//! `pillarbox config`: what a configuration may say.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use pillarbox_relay::config::REFERENCE;

use crate::{error::Error, out};

/// Show what a configuration may say.
#[derive(Debug, ClapArgs)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    /// Prints a commented file with every setting and its default.
    #[arg(long, required = true)]
    reference: bool,
}

pub(crate) fn run(_args: &Args) -> Result<ExitCode, Error> {
    // Who has left has read enough.
    let _ = out::print(REFERENCE)?;
    Ok(ExitCode::SUCCESS)
}
