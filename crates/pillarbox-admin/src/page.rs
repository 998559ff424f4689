//! The page to try the API. It loads nothing from elsewhere, and keeps a token in the page's memory alone.

use axum::{http::header, response::IntoResponse};

/// What is served to browsers that have no token yet.
pub(crate) const PUBLIC: [&str; 4] = ["/docs", "/docs.js", "/docs.css", "/openapi.json"];

pub(crate) async fn html() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], include_str!("docs.html"))
}

pub(crate) async fn script() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/javascript; charset=utf-8")], include_str!("docs.js"))
}

pub(crate) async fn style() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], include_str!("docs.css"))
}
