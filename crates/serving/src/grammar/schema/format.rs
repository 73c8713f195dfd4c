//! The formats of strings that are enforced, as patterns. Each describes a part of what its format allows: the
//! plain forms that every reader takes.
//!
//! Formats that are not here (`regex`, and words that the standard does not know, such as `binary` or
//! `password`) are annotations.

const DATE: &str = "[12][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|\
                    02-(?:0[1-9]|1[0-9]|2[0-8]))";
const TIME: &str =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
/// No two hyphens in a row, which internationalised names have reserved.
const LABEL: &str = "[a-zA-Z0-9]{1,20}(?:-[a-zA-Z0-9]{1,12})?";
const OCTET: &str = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
const PATH_CHAR: &str = "(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})";
const QUERY: &str = "(?:\\?(?:[a-zA-Z0-9._~!$&'()*+,;=:@/?-]|%[0-9a-fA-F]{2})*)?(?:#(?:[a-zA-Z0-9._~!$&'()*+,;=:@/?-]|%[0-9a-fA-F]{2})*)?";

/// The pattern of a format.
pub(super) fn pattern(format: &str) -> Option<String> {
    let host = format!("{LABEL}(?:\\.{LABEL}){{0,7}}");
    let uri = format!(
        "(?:https?|ftp|wss?|file)://{host}(?::[1-9][0-9]{{0,3}})?(?:/{PATH_CHAR}*)*{QUERY}|\
         (?:urn|mailto|tel|data|[a-z]{{3,12}}):{PATH_CHAR}+(?:/{PATH_CHAR}*)*{QUERY}"
    );
    let pattern = match format {
        "date" => DATE.to_owned(),
        "time" => TIME.to_owned(),
        "date-time" => format!("{DATE}T{TIME}"),
        "duration" => "P(?:[0-9]{1,6}W|[0-9]{1,6}D(?:T[0-9]{1,6}[HMS])?|[0-9]{1,6}[YM]|T(?:[0-9]{1,6}H(?:[0-9]{1,6}M(?:[0-9]{1,6}S)?)?|\
                       [0-9]{1,6}M(?:[0-9]{1,6}S)?|[0-9]{1,6}S))"
            .to_owned(),
        "email" | "idn-email" => format!(
            "[a-zA-Z0-9_+-]{{1,24}}(?:\\.[a-zA-Z0-9_+-]{{1,12}}){{0,2}}@{LABEL}(?:\\.{LABEL}){{0,3}}\\.[a-zA-Z]{{2,12}}"
        ),
        "hostname" | "idn-hostname" => host,
        "ipv4" => format!("{OCTET}(?:\\.{OCTET}){{3}}"),
        "ipv6" => {
            let group = "[0-9a-fA-F]{1,4}";
            format!("(?:(?:{group}:){{7}}{group}|(?:{group}:){{1,6}}:{group}|::(?:{group}:){{0,5}}{group}|(?:{group}:){{1,7}}:|::)")
        }
        "uuid" => "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}".to_owned(),
        "uri" | "iri" => uri,
        "uri-reference" | "iri-reference" | "uri-template" => {
            format!("{uri}|(?:/{PATH_CHAR}+)+/?{QUERY}|[a-zA-Z0-9._-]+(?:/{PATH_CHAR}*)*{QUERY}")
        }
        "json-pointer" => "(?:/(?:[^~/]|~[01])*)*".to_owned(),
        "relative-json-pointer" => "(?:0|[1-9][0-9]{0,8})(?:#|(?:/(?:[^~/]|~[01])*)*)".to_owned(),
        _ => return None,
    };
    Some(format!("^(?:{pattern})$"))
}
