//! `#[outbox(...)]`: what may be said, and what is told to those who say something else.

use proc_macro2::Span;
use syn::{
    Attribute, Error, Expr, Ident, LitInt, LitStr, Path, Result, Token,
    ext::IdentExt as _,
    parenthesized,
    parse::{Parse, ParseStream},
    punctuated::Punctuated,
};

const KNOWN: [&str; 12] = [
    "type",
    "aggregate",
    "aggregate_id",
    "key",
    "tenant",
    "context",
    "version",
    "version_in",
    "upcast",
    "codec",
    "protobuf",
    "crate",
];

/// What is said about a type or a variant.
#[derive(Default)]
pub(crate) struct Said {
    pub(crate) event_type: Option<LitStr>,
    pub(crate) aggregate: Option<LitStr>,
    pub(crate) aggregate_id: Option<Expr>,
    pub(crate) key: Option<Expr>,
    pub(crate) tenant: Option<Expr>,
    pub(crate) context: Vec<(Ident, Expr)>,
    pub(crate) version: Option<(u32, Span)>,
    pub(crate) version_in: Option<(VersionIn, Span)>,
    pub(crate) upcast: Option<Path>,
    pub(crate) codec: Option<Expr>,
    pub(crate) protobuf: Option<Span>,
    pub(crate) root: Option<Path>,
}

/// Where the version of a schema travels.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum VersionIn {
    Header,
    Type,
}

impl Said {
    pub(crate) fn of(attributes: &[Attribute]) -> Result<Self> {
        let mut said = Self::default();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("outbox")) {
            attribute.parse_args_with(|input: ParseStream<'_>| said.read(input))?;
        }
        said.check()?;
        Ok(said)
    }

    fn read(&mut self, input: ParseStream<'_>) -> Result<()> {
        while !input.is_empty() {
            let name = input.call(Ident::parse_any)?;
            let span = name.span();
            match name.unraw().to_string().as_str() {
                "type" => set(&mut self.event_type, &name, text(input, &name)?)?,
                "aggregate" => set(&mut self.aggregate, &name, text(input, &name)?)?,
                "aggregate_id" => set(&mut self.aggregate_id, &name, place(input, &name)?)?,
                "key" => set(&mut self.key, &name, place(input, &name)?)?,
                "tenant" => set(&mut self.tenant, &name, place(input, &name)?)?,
                "context" => self.read_context(input, &name)?,
                "version" => set(&mut self.version, &name, version(input, &name)?)?,
                "version_in" => set(&mut self.version_in, &name, (version_in(input, &name)?, span))?,
                "upcast" => set(&mut self.upcast, &name, value(input, &name, "= some_function")?)?,
                "codec" => set(&mut self.codec, &name, value(input, &name, "= MessagePack")?)?,
                "protobuf" => set(&mut self.protobuf, &name, span)?,
                "crate" => set(&mut self.root, &name, value(input, &name, "= some_path")?)?,
                other => return Err(Error::new(span, unknown(other, &KNOWN))),
            }
            if !input.is_empty() {
                input.parse::<Token![,]>().map_err(|_| input.error("put a comma between two attributes"))?;
            }
        }
        Ok(())
    }

    fn read_context(&mut self, input: ParseStream<'_>, name: &Ident) -> Result<()> {
        if !input.peek(syn::token::Paren) {
            return Err(Error::new(
                name.span(),
                "write `context(user = user_id, ...)`: a name and where its value comes from",
            ));
        }
        let inner;
        parenthesized!(inner in input);
        for Entry { name, value } in Punctuated::<Entry, Token![,]>::parse_terminated(&inner)? {
            if self.context.iter().any(|(known, _)| *known == name) {
                return Err(Error::new(name.span(), format!("the context entry `{name}` is set twice")));
            }
            self.context.push((name, value));
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        let version = self.version.map_or(1, |(version, _)| version);
        if let (Some(upcast), 1) = (&self.upcast, version) {
            let message = "`upcast` reads former versions, and this is version 1: set `version = 2`";
            return Err(Error::new_spanned(upcast, message));
        }
        if let (Some(span), Some(_)) = (self.protobuf, &self.codec) {
            return Err(Error::new(span, "`protobuf` and `codec` are both set: an event has one format"));
        }
        if let (Some((_, span)), 1) = (self.version_in, version) {
            return Err(Error::new(span, "`version_in` says where the version travels: set `version = 2`"));
        }
        Ok(())
    }
}

struct Entry {
    name: Ident,
    value: Expr,
}

impl Parse for Entry {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let name = input.call(Ident::parse_any)?;
        let value = place(input, &name)?;
        Ok(Self { name, value })
    }
}

fn set<T>(slot: &mut Option<T>, name: &Ident, value: T) -> Result<()> {
    if slot.is_some() {
        return Err(Error::new(name.span(), format!("`{}` is set twice: leave one of them out", name.unraw())));
    }
    *slot = Some(value);
    Ok(())
}

fn equals(input: ParseStream<'_>, name: &Ident, example: &str) -> Result<()> {
    if input.peek(Token![=]) {
        input.parse::<Token![=]>()?;
        return Ok(());
    }
    Err(Error::new(name.span(), format!("write `{} {example}`", name.unraw())))
}

fn value<T: Parse>(input: ParseStream<'_>, name: &Ident, example: &str) -> Result<T> {
    equals(input, name, example)?;
    let span = input.span();
    input.parse().map_err(|_| Error::new(span, format!("write `{} {example}`", name.unraw())))
}

fn text(input: ParseStream<'_>, name: &Ident) -> Result<LitStr> {
    let text: LitStr = value(input, name, "= \"a name\"")?;
    if text.value().is_empty() {
        return Err(Error::new(text.span(), format!("`{}` is empty: it needs a name", name.unraw())));
    }
    Ok(text)
}

fn place(input: ParseStream<'_>, name: &Ident) -> Result<Expr> {
    value(input, name, "= some_field")
}

fn version(input: ParseStream<'_>, name: &Ident) -> Result<(u32, Span)> {
    let number: LitInt = value(input, name, "= 2")?;
    match number.base10_parse() {
        Ok(version) if version > 0 => Ok((version, number.span())),
        _ => Err(Error::new(number.span(), "a version is a number from 1 on")),
    }
}

fn version_in(input: ParseStream<'_>, name: &Ident) -> Result<VersionIn> {
    let place: LitStr = value(input, name, "= \"header\"")?;
    match place.value().as_str() {
        "header" => Ok(VersionIn::Header),
        "type" => Ok(VersionIn::Type),
        _ => Err(Error::new(place.span(), "a version travels in the \"header\" or in the \"type\"")),
    }
}

/// What is told about a word that nobody knows.
pub(crate) fn unknown(word: &str, known: &[&str]) -> String {
    let near = known.iter().find(|known| is_near(word, known));
    match near {
        Some(near) => format!("unknown attribute `{word}`: did you mean `{near}`?"),
        None => format!("unknown attribute `{word}`: known are `{}`", known.join("`, `")),
    }
}

/// Whether two words differ by a slip: one letter more, less or other, or two that changed places.
fn is_near(one: &str, other: &str) -> bool {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    if one.len().abs_diff(other.len()) > 1 {
        return false;
    }
    let same = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
    let (one, other) = (&one[same..], &other[same..]);
    let skip = |letters: &[char], count: usize| letters.get(count..).map(<[char]>::to_vec);
    skip(one, 1) == skip(other, 1)
        || skip(one, 1).as_deref() == Some(other)
        || skip(other, 1).as_deref() == Some(one)
        || (skip(one, 2).is_some() && skip(one, 2) == skip(other, 2) && one[0] == other[1] && one[1] == other[0])
}
