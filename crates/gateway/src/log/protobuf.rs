//! Spans as protobuf: a request of OTLP that was made as JSON, written in protobuf's wire format.
//!
//! The numbers of fields are those of `opentelemetry/proto/{collector/trace/v1/trace_service,trace/v1/trace,common/v1/common,
//! resource/v1/resource}.proto` (OTLP 1.x, stable), the format that of
//! <https://protobuf.dev/programming-guides/encoding/>. Written are the fields that a span of ours has, and no others.

use serde_json::Value;

/// Protobuf's wire types.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;

/// An `ExportTraceServiceRequest`, from its JSON.
pub(super) fn request(json: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    for spans in items(json, "resourceSpans") {
        message(&mut out, 1, |out| resource_spans(out, spans));
    }
    out
}

fn resource_spans(out: &mut Vec<u8>, json: &Value) {
    message(out, 1, |out| attributes(out, 1, &json["resource"]));
    for scope in items(json, "scopeSpans") {
        message(out, 2, |out| {
            message(out, 1, |out| {
                text(out, 1, &scope["scope"]["name"]);
                text(out, 2, &scope["scope"]["version"]);
            });
            for one in items(scope, "spans") {
                message(out, 2, |out| span(out, one));
            }
        });
    }
}

fn span(out: &mut Vec<u8>, json: &Value) {
    for (number, name) in [(1, "traceId"), (2, "spanId"), (4, "parentSpanId")] {
        let id = from_hex(json[name].as_str().unwrap_or_default());
        if !id.is_empty() {
            bytes(out, number, &id);
        }
    }
    text(out, 5, &json["name"]);
    number(out, 6, json["kind"].as_u64().unwrap_or_default());
    for (number, name) in [(7, "startTimeUnixNano"), (8, "endTimeUnixNano")] {
        let nanos: u64 = json[name].as_str().and_then(|text| text.parse().ok()).unwrap_or_default();
        fixed(out, number, nanos);
    }
    attributes(out, 9, json);
    message(out, 15, |out| {
        text(out, 2, &json["status"]["message"]);
        number(out, 3, json["status"]["code"].as_u64().unwrap_or_default());
    });
}

fn attributes(out: &mut Vec<u8>, field: u64, json: &Value) {
    for attribute in items(json, "attributes") {
        message(out, field, |out| {
            text(out, 1, &attribute["key"]);
            message(out, 2, |out| value(out, &attribute["value"]));
        });
    }
}

/// An `AnyValue`, whose member says its kind; one that is its kind's zero is there too.
fn value(out: &mut Vec<u8>, json: &Value) {
    if let Some(text) = json["stringValue"].as_str() {
        bytes(out, 1, text.as_bytes());
    } else if let Some(flag) = json["boolValue"].as_bool() {
        tag(out, 2, VARINT);
        varint(out, u64::from(flag));
    } else if let Some(number) = json["intValue"].as_str().and_then(|text| text.parse::<i64>().ok()) {
        tag(out, 3, VARINT);
        // In two's complement, so that a negative one takes ten bytes.
        varint(out, number.cast_unsigned());
    } else if let Some(number) = json["doubleValue"].as_f64() {
        fixed(out, 4, number.to_bits());
    }
}

fn items<'j>(json: &'j Value, name: &str) -> impl Iterator<Item = &'j Value> {
    json[name].as_array().into_iter().flatten()
}

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn tag(out: &mut Vec<u8>, field: u64, kind: u64) {
    varint(out, field << 3 | kind);
}

fn bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    tag(out, field, LENGTH);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn message(out: &mut Vec<u8>, field: u64, write: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    write(&mut inner);
    bytes(out, field, &inner);
}

/// A text that is not empty, which is what one that is missing means.
fn text(out: &mut Vec<u8>, field: u64, json: &Value) {
    if let Some(text) = json.as_str().filter(|text| !text.is_empty()) {
        bytes(out, field, text.as_bytes());
    }
}

fn number(out: &mut Vec<u8>, field: u64, number: u64) {
    if number > 0 {
        tag(out, field, VARINT);
        varint(out, number);
    }
}

fn fixed(out: &mut Vec<u8>, field: u64, number: u64) {
    tag(out, field, FIXED64);
    out.extend_from_slice(&number.to_le_bytes());
}

/// Bytes of an even number of hexadecimal digits.
fn from_hex(text: &str) -> Vec<u8> {
    let digit = |digit: u8| char::from(digit).to_digit(16).unwrap_or_default() as u8;
    text.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_are_written_as_the_formats_own_examples() {
        // From the encoding guide: 150 in field 1, and the text "testing" in field 2.
        let mut out = Vec::new();
        number(&mut out, 1, 150);
        assert_eq!(out, [0x08, 0x96, 0x01]);
        out.clear();
        text(&mut out, 2, &json!("testing"));
        assert_eq!(out, [0x12, 0x07, 0x74, 0x65, 0x73, 0x74, 0x69, 0x6e, 0x67]);
        out.clear();
        value(&mut out, &json!({"intValue": "-2"}));
        assert_eq!(out, [0x18, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]);
        assert_eq!(from_hex("0af7"), [0x0a, 0xf7]);
    }

    /// The bytes that Google's implementation (PyPI protobuf with opentelemetry-proto 1.45.2) writes for the same message.
    #[test]
    fn a_request_is_the_bytes_of_another_implementation() {
        let json = json!({"resourceSpans": [{
            "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "hearth"}}]},
            "scopeSpans": [{"scope": {"name": "s", "version": "1"}, "spans": [{
                "traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331",
                "parentSpanId": "00f067aa0ba902b7", "name": "chat m", "kind": 3,
                "startTimeUnixNano": "1764460800123000000", "endTimeUnixNano": "1764460801000000000",
                "attributes": [
                    {"key": "i", "value": {"intValue": "0"}}, {"key": "b", "value": {"boolValue": false}},
                    {"key": "d", "value": {"doubleValue": 0.25}}, {"key": "e", "value": {"stringValue": ""}},
                ],
                "status": {"code": 2, "message": "no"},
            }]}],
        }]});
        let written: String = request(&json).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            written,
            "0a9d010a1a0a180a0c736572766963652e6e616d6512080a06686561727468127f0a060a017312013112750a100af7651916cd43dd8448eb211c80319c1208b7ad6b7169203331220800f067aa0ba902b72a0663686174206d300339c0d46ecbbf9f7c184100cab4ffbf9f7c184a070a0169120218004a070a0162120210004a0e0a0164120921000000000000d03f4a070a016512020a007a0612026e6f1802"
        );
    }
}
