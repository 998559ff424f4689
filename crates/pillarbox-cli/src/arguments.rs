//! The command line.

use std::process::ExitCode;

use clap::{
    Parser,
    error::{ContextKind, ContextValue},
};

use pillarbox::Kind;

use crate::secret::hidden;

/// Reads it; what is refused is told without the credentials in it.
pub(crate) fn read<T: Parser>() -> Result<T, ExitCode> {
    T::try_parse().map_err(|error| {
        let error = without_credentials(error);
        // Nobody is left to tell if the output is gone.
        let _ = error.print();
        u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
    })
}

/// The same error, whose words quote no password, and say where a URL belongs.
fn without_credentials(mut error: clap::Error) -> clap::Error {
    let quoted: Vec<_> = error.context().map(|(kind, value)| (kind, value.clone())).collect();
    let mut a_url = false;
    for (kind, value) in quoted {
        // Its only words are this program's own.
        if kind == ContextKind::Usage {
            continue;
        }
        let mut hide = |text: &str| {
            a_url |= Kind::of(text.trim_start_matches('-')).is_ok();
            hidden(text).into_owned()
        };
        let shown = match &value {
            ContextValue::String(text) => ContextValue::String(hide(text)),
            ContextValue::Strings(texts) => ContextValue::Strings(texts.iter().map(|text| hide(text)).collect()),
            ContextValue::StyledStr(text) => ContextValue::StyledStr(hide(&text.to_string()).into()),
            // Advice to type the same once more, in another place.
            ContextValue::StyledStrs(texts) => {
                let told = texts.iter().filter(|text| hide(&text.to_string()) == text.to_string());
                ContextValue::StyledStrs(told.cloned().collect())
            }
            _ => continue,
        };
        if shown != value {
            error.insert(kind, shown);
        }
    }
    if a_url {
        let advice = "a database is named with '--db URL', or by PILLARBOX_DB";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![advice.into()]));
    }
    error
}
