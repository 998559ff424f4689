"use strict";
// Builds a form for each operation of the document, and shows the answers as text. Nothing is put into the page as
// HTML, and the token stays in its field.

// Whether cookies are sent: the service knows whether they say who somebody is.
const { credentials } = document.documentElement.dataset;

const make = (name, attributes = {}, ...children) => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};

// What stands between backticks is code.
const words = (text) => text.split("`").map((part, n) => (n % 2 ? make("code", {}, part) : part));

const resolve = (api, value) =>
  value && value.$ref ? value.$ref.slice(2).split("/").reduce((at, name) => at[name], api) : value;

// A body that is taken as it stands: of many, only a count.
const example = (api, schema) => {
  const properties = resolve(api, schema).properties || {};
  const sample = {};
  for (const name of Object.keys(properties)) {
    if (name === "because") sample[name] = "why";
    else if (name === "all" || name === "dry_run") sample[name] = true;
    else if (name === "payload") sample[name] = {};
  }
  return JSON.stringify(sample, null, 2);
};

const send = async (base, method, path, parameters, form, answer) => {
  const query = new URLSearchParams();
  const headers = {};
  for (const parameter of parameters) {
    const value = form.elements[parameter.name].value;
    if (value === "") continue;
    if (parameter.in === "path") path = path.replace(`{${parameter.name}}`, encodeURIComponent(value));
    else if (parameter.in === "header") headers[parameter.name] = value;
    else query.set(parameter.name, value);
  }
  const token = document.getElementById("token").value.trim();
  if (token) headers.Authorization = `Bearer ${token}`;
  const options = { method: method.toUpperCase(), headers, credentials };
  const body = form.elements["request body"];
  if (body && body.value.trim()) {
    options.body = body.value;
    headers["Content-Type"] = "application/json";
  }
  const url = base + path + (query.size ? `?${query}` : "");
  answer.textContent = "…";
  try {
    const response = await fetch(url, options);
    const text = await response.text();
    let shown = text;
    try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch { /* It is shown as it is. */ }
    answer.textContent = `${options.method} ${url}\n${response.status} ${response.statusText}\n\n${shown}`;
  } catch (error) {
    answer.textContent = String(error);
  }
};

const operation = (api, base, method, path, of) => {
  const parameters = (of.parameters || []).map((parameter) => resolve(api, parameter));
  const form = make("form", { autocomplete: "off" });
  if (of.description) form.append(make("p", {}, ...words(of.description)));
  for (const parameter of parameters) {
    const field = make("input", { name: parameter.name, spellcheck: "false" });
    if (parameter.required) field.required = true;
    if (parameter.schema.default !== undefined) field.placeholder = String(parameter.schema.default);
    form.append(make("label", {}, parameter.name, field, make("small", {}, ...words(parameter.description || ""))));
  }
  if (of.requestBody) {
    const field = make("textarea", { name: "request body", spellcheck: "false" });
    field.value = example(api, of.requestBody.content["application/json"].schema);
    form.append(make("label", {}, "request body", field));
  }
  const answer = make("pre", { hidden: "" });
  form.append(make("button", {}, "Send"), answer);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    answer.hidden = false;
    send(base, method, path, parameters, form, answer);
  });
  const name = make("span", { class: "method" }, method.toUpperCase());
  return make("details", {}, make("summary", {}, name, make("code", {}, path), ` ${of.summary}`), form);
};

const show = async () => {
  const main = document.getElementById("operations");
  const api = await (await fetch("openapi.json", { credentials })).json();
  const base = api.servers[0].url.replace(/\/$/, "");
  document.getElementById("about").textContent = api.info.description;
  for (const tag of api.tags) {
    const section = make("section", {}, make("h2", {}, tag.description));
    for (const [path, methods] of Object.entries(api.paths)) {
      for (const [method, of] of Object.entries(methods)) {
        if (of.tags.includes(tag.name)) section.append(operation(api, base, method, path, of));
      }
    }
    main.append(section);
  }
};

show().catch((error) => { document.getElementById("about").textContent = String(error); });
