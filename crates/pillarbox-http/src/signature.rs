//! Signatures as Standard Webhooks has them: HMAC-SHA256 over `id.timestamp.body`.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use reqwest::header::HeaderMap;
use sha2::Sha256;

pub(crate) const ID: &str = "webhook-id";
pub(crate) const TIMESTAMP: &str = "webhook-timestamp";
pub(crate) const SIGNATURE: &str = "webhook-signature";

const VERSION: &str = "v1";

/// What sender and receiver of a web hook share. Prints nothing of itself.
#[derive(Clone)]
pub struct Secret(Hmac<Sha256>);

impl Secret {
    /// Reads `whsec_` and 24 to 64 bytes in base64, as the standard has it; the prefix may be left out.
    pub fn parse(text: &str) -> Result<Self, SignatureError> {
        let text = text.trim();
        let key = STANDARD.decode(text.strip_prefix("whsec_").unwrap_or(text));
        let key = key.ok().filter(|key| (24..=64).contains(&key.len())).ok_or(SignatureError::Secret)?;
        Hmac::new_from_slice(&key).map(Self).map_err(|_| SignatureError::Secret)
    }

    /// The signature as it stands in the header, its version before it.
    pub(crate) fn sign(&self, id: &str, timestamp: &str, body: &[u8]) -> String {
        format!("{VERSION},{}", STANDARD.encode(self.mac(id, timestamp, body).finalize().into_bytes()))
    }

    fn mac(&self, id: &str, timestamp: &str, body: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            mac.update(part);
        }
        mac
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Why a request is not to be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SignatureError {
    /// The secret is none: it has to be 24 to 64 bytes in base64, with `whsec_` before them.
    Secret,
    /// One of the three headers is missing, or no text.
    Missing,
    /// The timestamp is none, or further from now than the tolerance: an old request, sent again by somebody.
    Time,
    /// No signature of the header fits: another secret, or another body.
    Signature,
}

impl fmt::Display for SignatureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Secret => "the secret has to be `whsec_` and 24 to 64 bytes in base64",
            Self::Missing => "webhook-id, webhook-timestamp and webhook-signature are needed",
            Self::Time => "the timestamp is too far from now",
            Self::Signature => "no signature fits",
        })
    }
}

impl std::error::Error for SignatureError {}

/// For receivers: whether a request comes from who knows the secret, is what he sent, and is no older than the tolerance
/// (nor as far in the future; five minutes is usual).
///
/// The body is the request's, to the byte, before anything parses it. A sender with several secrets signs with each, so that
/// a receiver needs one, and has time to change it. Compares in constant time.
///
/// An answer of `Ok` does not mean that the request is a first one: within the tolerance it may be sent again, so remember
/// its id (`webhook-id`, which the signature covers; no other header is covered).
///
/// ```
/// # use std::time::Duration;
/// # use reqwest::header::HeaderMap;
/// use pillarbox_http::{Secret, SignatureError, verify};
///
/// # fn receive(headers: HeaderMap, body: &[u8]) -> Result<(), SignatureError> {
/// let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")?;
/// verify(&secret, &headers, body, Duration::from_mins(5))?;
/// # Ok(()) }
/// # assert_eq!(receive(HeaderMap::new(), b"{}"), Err(SignatureError::Missing));
/// ```
pub fn verify(secret: &Secret, headers: &HeaderMap, body: &[u8], tolerance: Duration) -> Result<(), SignatureError> {
    verify_at(SystemTime::now(), secret, headers, body, tolerance)
}

fn verify_at(
    now: SystemTime,
    secret: &Secret,
    headers: &HeaderMap,
    body: &[u8],
    tolerance: Duration,
) -> Result<(), SignatureError> {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).ok_or(SignatureError::Missing);
    let (id, timestamp, signatures) = (header(ID)?, header(TIMESTAMP)?, header(SIGNATURE)?);
    let seconds: u64 = timestamp.parse().map_err(|_| SignatureError::Time)?;
    if seconds.abs_diff(seconds_of(now)) > tolerance.as_secs() {
        return Err(SignatureError::Time);
    }
    let mac = secret.mac(id, timestamp, body);
    let fits = |signature: &str| {
        let encoded = signature.strip_prefix(VERSION).and_then(|signature| signature.strip_prefix(','));
        let bytes = encoded.and_then(|encoded| STANDARD.decode(encoded).ok());
        bytes.is_some_and(|bytes| mac.clone().verify_slice(&bytes).is_ok())
    };
    // Signatures of other versions may stand beside ours.
    if signatures.split_ascii_whitespace().any(fits) { Ok(()) } else { Err(SignatureError::Signature) }
}

pub(crate) fn seconds_of(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    // The example of the standard's own libraries.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SENT: u64 = 1_614_265_330;
    const SIGNED: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    const TOLERANCE: Duration = Duration::from_mins(5);

    fn headers(signature: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(ID, "msg_p5jXN8AQM9LWM0D4loKWxJek".parse().unwrap());
        headers.insert(TIMESTAMP, SENT.to_string().parse().unwrap());
        headers.insert(SIGNATURE, signature.parse().unwrap());
        headers
    }

    fn verify_after(seconds: u64, headers: &HeaderMap, body: &[u8]) -> Result<(), SignatureError> {
        let now = UNIX_EPOCH + Duration::from_secs(seconds);
        verify_at(now, &Secret::parse(SECRET).unwrap(), headers, body, TOLERANCE)
    }

    #[test]
    fn signatures_are_those_of_the_standard() {
        let secret = Secret::parse(SECRET).unwrap();
        assert_eq!(secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", &SENT.to_string(), BODY), SIGNED);
        assert_eq!(verify_after(SENT, &headers(SIGNED), BODY), Ok(()));
    }

    #[test]
    fn one_signature_of_several_is_enough() {
        let rotated = format!("v1a,AAAA v1,{} {SIGNED}", STANDARD.encode([0; 32]));
        assert_eq!(verify_after(SENT, &headers(&rotated), BODY), Ok(()));
    }

    #[test]
    fn whatever_was_changed_is_not_believed() {
        assert_eq!(verify_after(SENT, &headers(SIGNED), b"{}"), Err(SignatureError::Signature));
        for signature in
            ["v1,", "v1", "", "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", &SIGNED.replacen("v1", "v2", 1)]
        {
            assert_eq!(verify_after(SENT, &headers(signature), BODY), Err(SignatureError::Signature), "{signature}");
        }
        for name in [ID, TIMESTAMP, SIGNATURE] {
            let mut without = headers(SIGNED);
            without.remove(name);
            assert_eq!(verify_after(SENT, &without, BODY), Err(SignatureError::Missing), "{name}");
        }
        let mut other = headers(SIGNED);
        other.insert(ID, "msg_another".parse().unwrap());
        assert_eq!(verify_after(SENT, &other, BODY), Err(SignatureError::Signature));
    }

    #[test]
    fn what_is_too_old_or_too_new_is_not_believed() {
        for (now, expected) in [
            (SENT + 300, Ok(())),
            (SENT - 300, Ok(())),
            (SENT + 301, Err(SignatureError::Time)),
            (SENT - 301, Err(SignatureError::Time)),
        ] {
            assert_eq!(verify_after(now, &headers(SIGNED), BODY), expected, "{now}");
        }
        let mut timeless = headers(SIGNED);
        timeless.insert(TIMESTAMP, "now".parse().unwrap());
        assert_eq!(verify_after(SENT, &timeless, BODY), Err(SignatureError::Time));
    }

    #[test]
    fn secrets_have_at_least_24_bytes_and_are_not_printed() {
        for text in ["", "whsec_", "whsec_c2hvcnQ=", "not base64!", &"A".repeat(88)] {
            assert_eq!(Secret::parse(text).unwrap_err(), SignatureError::Secret, "{text}");
        }
        let secret = Secret::parse("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("the prefix may be left out");
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }
}
