//! `#[retry(...)]` on a method.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{
    Attribute, Error, Expr, Ident, LitFloat, LitInt, LitStr, Result, Token, Type, ext::IdentExt as _, parenthesized,
    parse::ParseStream,
};

use crate::attribute::unknown;

const KNOWN: [&str; 11] = [
    "fixed",
    "linear",
    "exponential",
    "never",
    "policy",
    "multiplier",
    "max_delay",
    "max_attempts",
    "jitter",
    "on",
    "never_on",
];

/// The expression for the policy.
pub(crate) fn policy(attribute: &Attribute, private: &TokenStream) -> Result<TokenStream> {
    attribute.parse_args_with(|input: ParseStream<'_>| read(input, attribute, private))
}

fn read(input: ParseStream<'_>, attribute: &Attribute, private: &TokenStream) -> Result<TokenStream> {
    let policy = quote!(#private::RetryPolicy);
    let mut base: Option<TokenStream> = None;
    let mut settings = Vec::new();
    let mut seen: Vec<String> = Vec::new();
    while !input.is_empty() {
        let name = input.call(Ident::parse_any)?;
        let word = name.unraw().to_string();
        if seen.contains(&word) && !matches!(word.as_str(), "on" | "never_on") {
            return Err(Error::new(name.span(), format!("`{word}` is set twice: leave one of them out")));
        }
        let mut kind = |tokens| match base.replace(tokens) {
            None => Ok(()),
            Some(_) => Err(Error::new(
                name.span(),
                "a retry is one of `fixed`, `linear`, `exponential`, `never` and `policy`: leave the others out",
            )),
        };
        match word.as_str() {
            "fixed" | "linear" | "exponential" => {
                let span = time(input, &name)?;
                kind(quote!(#policy::#name(#span)))?;
            }
            "never" => kind(quote!(#policy::never()))?,
            "policy" => {
                input.parse::<Token![=]>()?;
                let given: Expr = input.parse()?;
                kind(quote!(#given))?;
            }
            "max_delay" => {
                let span = time(input, &name)?;
                settings.push(quote!(.max_delay(#span)));
            }
            "max_attempts" => {
                input.parse::<Token![=]>()?;
                let number: LitInt = input.parse()?;
                if number.base10_parse::<u32>().map_or(true, |attempts| attempts == 0) {
                    let message = "`max_attempts` counts the first attempt, so the least is 1";
                    return Err(Error::new(number.span(), message));
                }
                settings.push(quote!(.max_attempts(#number)));
            }
            "multiplier" | "jitter" => {
                input.parse::<Token![=]>()?;
                let number = float(input)?;
                settings.push(quote!(.#name(#number)));
            }
            "on" | "never_on" => {
                let inner;
                parenthesized!(inner in input);
                let class: Type = inner.parse()?;
                let method = if word == "on" { quote!(retry_on) } else { quote!(never_on) };
                settings.push(quote!(.#method::<#class>()));
            }
            other => return Err(Error::new(name.span(), unknown(other, &KNOWN))),
        }
        seen.push(word);
        if !input.is_empty() {
            input.parse::<Token![,]>().map_err(|_| input.error("put a comma between two settings"))?;
        }
    }
    if seen.is_empty() {
        let message =
            "say how: `#[retry(exponential = \"200ms\", max_attempts = 5)]`, `fixed`, `linear`, `never` or `policy`";
        return Err(Error::new_spanned(attribute, message));
    }
    let base = base.unwrap_or_else(|| quote!(<#policy as ::std::default::Default>::default()));
    Ok(quote!(#base #(#settings)*))
}

fn float(input: ParseStream<'_>) -> Result<LitFloat> {
    if input.peek(LitInt) {
        let number: LitInt = input.parse()?;
        return Ok(LitFloat::new(&format!("{}.0", number.base10_digits()), number.span()));
    }
    input.parse()
}

/// `= "200ms"` as a duration.
pub(crate) fn time(input: ParseStream<'_>, name: &Ident) -> Result<TokenStream> {
    let shape = || format!("write `{} = \"200ms\"`: a number and one of ms, s, m, h", name.unraw());
    if !input.peek(Token![=]) {
        return Err(Error::new(name.span(), shape()));
    }
    input.parse::<Token![=]>()?;
    let text: LitStr = input.parse().map_err(|error| Error::new(error.span(), shape()))?;
    let value = text.value();
    let digits = value.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(value.len());
    let (number, unit) = value.split_at(digits);
    let factor = match unit.trim() {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(Error::new(text.span(), shape())),
    };
    let millis = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    let millis = millis.ok_or_else(|| Error::new(text.span(), shape()))?;
    Ok(quote!(::std::time::Duration::from_millis(#millis)))
}
