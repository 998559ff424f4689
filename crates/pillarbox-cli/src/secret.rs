//! What a user has typed and is not told again: a URL may hold a password, and errors end up in logs and in questions to
//! others.

use std::{borrow::Cow, ffi::OsStr};

/// What stands in its place.
const GONE: &str = "…";

/// One argument or value without the credentials of the URL in it, if it has any.
pub(crate) fn hidden(value: &str) -> Cow<'_, str> {
    let Some((scheme, rest)) = value.split_once("://") else {
        // With a slash forgotten, or without a scheme at all.
        return match (value.find(':'), value.rfind('@')) {
            (Some(colon), Some(at)) if colon < at => format!("{}:{GONE}{}", &value[..colon], &value[at..]).into(),
            _ => without_parameters(value),
        };
    };
    // A password may hold any character, also those that end a host: the last @ ends the credentials.
    if let Some((_, host)) = rest.rsplit_once('@') {
        return format!("{scheme}://{GONE}@{}", without_parameters(host)).into();
    }
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let port = host.rsplit_once(':').map_or("", |(_, port)| port);
    // Where the host was forgotten, what looks like a port is the password.
    if !host.starts_with('[') && port.contains(|c: char| !c.is_ascii_digit()) {
        return format!("{scheme}://{GONE}").into();
    }
    without_parameters(value)
}

/// Without the secrets that drivers take as parameters of a URL.
fn without_parameters(url: &str) -> Cow<'_, str> {
    let Some((base, query)) = url.split_once('?') else { return url.into() };
    let is_secret = |parameter: &str| {
        let name = parameter.split_once('=').map_or("", |(name, _)| name).to_ascii_lowercase();
        ["password", "passwd", "secret", "token"].iter().any(|word| name.contains(word))
    };
    if !query.split('&').any(is_secret) {
        return url.into();
    }
    let kept = query.split('&').map(|parameter| match parameter.split_once('=') {
        Some((name, _)) if is_secret(parameter) => format!("{name}={GONE}"),
        _ => parameter.to_owned(),
    });
    format!("{base}?{}", kept.collect::<Vec<_>>().join("&")).into()
}

/// A text that may quote what was typed, or what the environment has for this program, without the credentials in it.
pub(crate) fn untold(text: &str) -> String {
    let ours = |name: &OsStr| name.to_string_lossy().starts_with("PILLARBOX_");
    let of_environment = std::env::vars_os().filter(|(name, _)| ours(name)).map(|(_, value)| value);
    let typed = std::env::args_os().skip(1).chain(of_environment).filter_map(|value| value.into_string().ok());
    let mut text = text.to_owned();
    for typed in typed.filter(|typed| typed.contains("://")) {
        let value = typed.split_once('=').map_or("", |(_, value)| value);
        for quoted in [typed.as_str(), value] {
            if let Cow::Owned(hidden) = hidden(quoted) {
                text = text.replace(quoted, &hidden);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_left_out_wherever_they_stand() {
        for (value, shown) in [
            ("postgres://shop:s3cret@db/shop", "postgres://…@db/shop"),
            ("postgres://shop:s3/c?r#e@t@db:5432/shop", "postgres://…@db:5432/shop"),
            ("postgres://s3cret@db", "postgres://…@db"),
            ("postgres://shop:s3cret", "postgres://…"),
            ("postgres:/shop:s3cret@db/shop", "postgres:…@db/shop"),
            ("shop:s3cret@db/shop", "shop:…@db/shop"),
            ("--db=postgres://shop:s3cret@db/shop", "--db=postgres://…@db/shop"),
            ("postgres://db/shop?user=a&password=s3cret&x=1", "postgres://db/shop?user=a&password=…&x=1"),
            ("mysql://a:s3cret@db/shop?SslPassword=s3cret", "mysql://…@db/shop?SslPassword=…"),
        ] {
            assert_eq!(hidden(value), shown);
        }
    }

    #[test]
    fn what_has_no_credentials_stays_as_it_is() {
        for value in [
            "",
            "shop.db",
            "sqlite:shop.db",
            "postgres://localhost:5432/shop?sslmode=require",
            "http://[::1]:8420/api/admin",
            "ada@example.org",
            "127.0.0.1:8420",
            "outbox.workers=100",
        ] {
            assert!(matches!(hidden(value), Cow::Borrowed(same) if same == value), "{value}");
        }
    }
}
