//! The page to try the API. It loads nothing from elsewhere, and keeps a token in the page's memory alone.

use std::sync::Arc;

use axum::{extract::State, http::header, response::IntoResponse};

use crate::admin::Desk;

/// What is served to browsers that have no token yet.
pub(crate) const PUBLIC: [&str; 4] = ["/docs", "/docs.js", "/docs.css", "/openapi.json"];

/// Cookies go with the page's requests only where they may say who somebody is; a token says it alone.
pub(crate) async fn html(State(desk): State<Arc<Desk>>) -> impl IntoResponse {
    let credentials = if desk.access.may_be_by_cookie() { "same-origin" } else { "omit" };
    let page = include_str!("docs.html").replace("{credentials}", credentials);
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], page)
}

pub(crate) async fn script() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/javascript; charset=utf-8")], include_str!("docs.js"))
}

pub(crate) async fn style() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], include_str!("docs.css"))
}
