//! What is answered when a request fails: `application/problem+json`, as RFC 9457 has it.

use axum::{
    extract::rejection::JsonRejection,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use pillarbox::WriteError;
use serde_json::json;

/// Why a request failed. With `?` in a request it ends that request, and the transaction that is dropped on the way
/// is rolled back.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    detail: String,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into() }
    }

    pub(crate) fn no_such_order(id: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("there is no order {id}"))
    }

    /// What the client can't help is for the log, not for the client.
    fn internal(error: &dyn std::error::Error) -> Self {
        eprint!("a request failed");
        for error in std::iter::successors(Some(error), |error| error.source()) {
            eprint!(": {error}");
        }
        eprintln!();
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "the service has a problem of its own: try again later")
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let title = self.status.canonical_reason().unwrap_or("Error");
        let body = json!({ "title": title, "status": self.status.as_u16(), "detail": self.detail });
        (self.status, [(header::CONTENT_TYPE, "application/problem+json")], body.to_string()).into_response()
    }
}

/// No JSON is 400, another content type 415, and JSON of another shape 422.
impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text())
    }
}

impl From<sqlx::Error> for Problem {
    fn from(error: sqlx::Error) -> Self {
        Self::internal(&error)
    }
}

impl From<WriteError> for Problem {
    fn from(error: WriteError) -> Self {
        Self::internal(&error)
    }
}
