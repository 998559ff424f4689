//! Who may come in, and what they may do.

use std::{fmt, net::SocketAddr, sync::Arc};

use axum::{
    extract::ConnectInfo,
    http::{HeaderMap, Version, header, request::Parts},
};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

use crate::problem::Problem;

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Looks, and changes nothing.
    Viewer,
    /// Looks and acts.
    Operator,
}

impl Role {
    /// As it stands in a file of tokens.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
        }
    }
}

impl std::str::FromStr for Role {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        match text {
            "viewer" => Ok(Self::Viewer),
            "operator" => Ok(Self::Operator),
            _ => Err(TokenError("the role is viewer or operator".into())),
        }
    }
}

/// Who somebody is: the name stands in the record of what was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name.
    pub name: String,
    /// What it may do.
    pub role: Role,
}

impl Identity {
    /// Somebody who looks.
    pub fn viewer(name: impl Into<String>) -> Self {
        Self { name: name.into(), role: Role::Viewer }
    }

    /// Somebody who acts.
    pub fn operator(name: impl Into<String>) -> Self {
        Self { name: name.into(), role: Role::Operator }
    }
}

/// Who may come in. It has to be chosen: there is no default that could be open by mistake.
#[derive(Clone)]
pub struct Access(pub(crate) Way);

type Own = dyn Fn(&Parts) -> Option<Identity> + Send + Sync;

#[derive(Clone)]
pub(crate) enum Way {
    Tokens(Arc<Tokens>),
    Loopback,
    Own(Arc<Own>),
    Always(Identity),
}

impl Access {
    /// Whoever has one of these tokens, sent as `Authorization: Bearer TOKEN`.
    pub fn tokens(tokens: Tokens) -> Self {
        Self(Way::Tokens(Arc::new(tokens)))
    }

    /// Everybody on this machine, as operators, and nobody else.
    ///
    /// A request must come from a loopback address, ask for a loopback name (else a web page could reach it by a name
    /// of its own that leads here), and show no sign of a proxy. One that adds no header can't be noticed: behind a proxy,
    /// always give tokens. The peer's address is known if the service is served by
    /// `into_make_service_with_connect_info::<SocketAddr>()`; where it is not known, everything is refused.
    pub fn loopback() -> Self {
        Self(Way::Loopback)
    }

    /// Whoever your own authentication lets in, for a router behind it: the function sees the request's head with the
    /// extensions that your layers have set, and says who it is. `None` is refused.
    pub fn behind_your_own(who: impl Fn(&Parts) -> Option<Identity> + Send + Sync + 'static) -> Self {
        Self(Way::Own(Arc::new(who)))
    }

    /// Everybody who can reach the router, under this name. For tests, and for programs that call the router
    /// themselves.
    pub fn everybody(identity: Identity) -> Self {
        Self(Way::Always(identity))
    }

    pub(crate) fn identify(&self, parts: &Parts) -> Result<Identity, Problem> {
        match &self.0 {
            Way::Tokens(tokens) => {
                let found = tokens.find(bearer(&parts.headers).unwrap_or_default());
                found.cloned().ok_or_else(Problem::unauthorized)
            }
            Way::Loopback => {
                local(parts)?;
                Ok(Identity::operator("local"))
            }
            Way::Own(who) => who(parts).ok_or_else(Problem::unauthorized),
            Way::Always(identity) => Ok(identity.clone()),
        }
    }

    /// Whether a cookie may say who somebody is: to your own authentication, or to what stands before the router.
    pub(crate) fn may_be_by_cookie(&self) -> bool {
        matches!(self.0, Way::Own(_) | Way::Always(_))
    }

    /// Whether a browser could act for its user without knowing a secret.
    pub(crate) fn is_ambient(&self) -> bool {
        !matches!(self.0, Way::Tokens(_))
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Way::Tokens(tokens) => tokens.fmt(f),
            Way::Loopback => f.write_str("Loopback"),
            Way::Own(_) => f.write_str("BehindYourOwn"),
            Way::Always(identity) => f.debug_tuple("Everybody").field(identity).finish(),
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next().filter(|_| values.next().is_none())?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn local(parts: &Parts) -> Result<(), Problem> {
    let Some(ConnectInfo(peer)) = parts.extensions.get::<ConnectInfo<SocketAddr>>() else {
        return Err(Problem::forbidden(
            "without tokens only this machine may come in, and the peer's address is not known: serve the router by \
             into_make_service_with_connect_info::<SocketAddr>(), or give it tokens",
        ));
    };
    if !peer.ip().to_canonical().is_loopback() {
        return Err(Problem::forbidden("without tokens only this machine may come in: give the service tokens"));
    }
    let forwards = |name: &str| matches!(name, "forwarded" | "x-real-ip" | "via") || name.starts_with("x-forwarded-");
    // No browser asks by HTTP/1.0; a proxy that adds no header may.
    let by_proxy = parts.version < Version::HTTP_11 || parts.headers.keys().any(|name| forwards(name.as_str()));
    if by_proxy {
        return Err(Problem::forbidden(
            "without tokens only this machine may come in, and this request has passed a proxy: give the service tokens",
        ));
    }
    let asked = parts.uri.authority().map(axum::http::uri::Authority::as_str);
    let asked = asked.or_else(|| parts.headers.get(header::HOST).and_then(|host| host.to_str().ok()));
    if !asked.is_some_and(is_loopback_name) {
        return Err(Problem::forbidden(
            "without tokens the service answers to localhost, 127.0.0.1 and [::1] alone: ask for one of them, or give it \
             tokens",
        ));
    }
    Ok(())
}

fn is_loopback_name(authority: &str) -> bool {
    if authority.contains('@') {
        return false;
    }
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host.eq_ignore_ascii_case("localhost") || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Tokens with their names and roles. Only their digests are kept.
#[derive(Clone)]
pub struct Tokens(Vec<Token>);

#[derive(Clone)]
struct Token {
    identity: Identity,
    digest: [u8; 32],
}

/// Why tokens are refused. It never holds one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TokenError(String);

impl Tokens {
    /// A token shorter than this is refused.
    pub const SHORTEST: usize = 16;

    /// No token yet: nobody comes in.
    pub fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a token under a name that no other has.
    pub fn with(mut self, name: impl Into<String>, role: Role, token: &str) -> Result<Self, TokenError> {
        let name = name.into();
        if name.is_empty() || name.len() > 100 || name.chars().any(char::is_control) {
            return Err(TokenError("a token's name has 1 to 100 characters, and no control characters".into()));
        }
        if token.len() < Self::SHORTEST || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let shortest = Self::SHORTEST;
            return Err(TokenError(format!(
                "the token of {name:?} is refused: it has at least {shortest} characters, letters and digits such as \
                 `openssl rand -hex 32` prints"
            )));
        }
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        for other in &self.0 {
            if other.identity.name == name {
                return Err(TokenError(format!("two tokens are called {name:?}")));
            }
            if other.digest == digest {
                return Err(TokenError(format!("{name:?} and {:?} have the same token", other.identity.name)));
            }
        }
        self.0.push(Token { identity: Identity { name, role }, digest });
        Ok(self)
    }

    /// Reads tokens from a text: a line each with name, role and token, as in `ada operator 0f3a...`. What comes after
    /// a `#` at the beginning of a line is a comment.
    pub fn read(text: &str) -> Result<Self, TokenError> {
        let mut tokens = Self::new();
        for (number, line) in text.lines().enumerate() {
            let at = |error: TokenError| TokenError(format!("line {}: {error}", number + 1));
            let words: Vec<_> = line.split_whitespace().collect();
            match words[..] {
                [] => {}
                [first, ..] if first.starts_with('#') => {}
                [name, role, token] => tokens = tokens.with(name, role.parse().map_err(at)?, token).map_err(at)?,
                _ => return Err(at(TokenError("a line has a name, a role (viewer or operator) and a token".into()))),
            }
        }
        if tokens.0.is_empty() {
            return Err(TokenError("there is no token: a line has a name, a role and a token".into()));
        }
        Ok(tokens)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nobody could come in.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn find(&self, presented: &str) -> Option<&Identity> {
        let digest: [u8; 32] = Sha256::digest(presented.as_bytes()).into();
        let Compared { found, place, .. } = compare(&digest, self.0.iter().map(|token| &token.digest));
        let token = usize::try_from(place).ok().and_then(|place| self.0.get(place));
        token.filter(|_| bool::from(found)).map(|token| &token.identity)
    }
}

struct Compared {
    found: Choice,
    place: u64,
    /// How many there were; a test asks.
    comparisons: u64,
}

/// Compares with every one of them, whichever is the right one, and each to its last byte: how long it takes says
/// nothing about what is right.
fn compare<'a>(presented: &[u8; 32], kept: impl Iterator<Item = &'a [u8; 32]>) -> Compared {
    let mut compared = Compared { found: Choice::from(0), place: 0, comparisons: 0 };
    for (place, kept) in (0_u64..).zip(kept) {
        let equal = kept.ct_eq(presented);
        compared.place.conditional_assign(&place, equal);
        compared.found |= equal;
        compared.comparisons += 1;
    }
    compared
}

impl Default for Tokens {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|token| &token.identity)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADA: &str = "ada-has-a-long-token";
    const BOB: &str = "bob-has-another-one-";

    fn two() -> Tokens {
        Tokens::read(&format!("# people\n\nada operator {ADA}\n  bob viewer {BOB}\n")).unwrap()
    }

    #[test]
    fn a_token_tells_who_it_is() {
        let tokens = two();
        assert_eq!(tokens.find(ADA), Some(&Identity::operator("ada")));
        assert_eq!(tokens.find(BOB), Some(&Identity::viewer("bob")));
        for wrong in ["", "ada", "ADA-has-a-long-token", "ada-has-a-long-token ", "ada-has-a-long-toke"] {
            assert_eq!(tokens.find(wrong), None, "{wrong:?}");
        }
        assert_eq!(Tokens::new().find(""), None);
    }

    #[test]
    fn every_token_is_compared_whichever_is_right() {
        let kept: Vec<[u8; 32]> = (0..10).map(|n| [n; 32]).collect();
        for presented in [[0; 32], [9; 32], [77; 32]] {
            let compared = compare(&presented, kept.iter());
            assert_eq!(compared.comparisons, 10);
            assert_eq!(bool::from(compared.found), presented[0] < 10);
            assert_eq!(compared.place, if presented[0] < 10 { u64::from(presented[0]) } else { 0 });
        }
    }

    #[test]
    fn a_file_of_tokens_is_refused_with_the_line_and_without_the_token() {
        let secret = "s3cret-s3cret-s3cret";
        for (text, words) in [
            (String::new(), "no token"),
            ("# nothing".to_owned(), "no token"),
            (format!("ada {secret}"), "line 1"),
            (format!("\nada admin {secret}"), "line 2: the role is viewer or operator"),
            ("ada viewer short".to_owned(), "at least 16"),
            (format!("ada viewer {secret}\nada viewer x{secret}"), "line 2: two tokens"),
            (format!("ada viewer {secret}\nbob viewer {secret}"), "the same token"),
            (format!("ada viewer {secret} more"), "line 1"),
        ] {
            let error = Tokens::read(&text).unwrap_err().to_string();
            assert!(error.contains(words), "{text:?}: {error}");
            assert!(!error.contains(secret), "{error}");
        }
        let debug = format!("{:?}", two());
        assert!(debug.contains("ada") && !debug.contains(ADA), "{debug}");
    }

    #[test]
    fn loopback_has_its_names() {
        for name in ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.9.9.9:1", "[::1]", "[::1]:80"] {
            assert!(is_loopback_name(name), "{name}");
        }
        for name in [
            "",
            "evil.example",
            "localhost:9@evil",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
            "10.0.0.1",
            "[fe80::1]:80",
            "::1",
        ] {
            assert!(!is_loopback_name(name), "{name}");
        }
    }
}
