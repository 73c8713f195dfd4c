//! Streams of the built program, whole and in order on every surface that passes a provider's on.

use super::fake::{self, Fake};
use super::server::{Home, chat_body, receive, send};

/// Row 28 of the public faults: after an update of a dependency every stream of the packed program was a 500.
#[test]
fn a_stream_of_the_built_program_is_whole_on_each_surface() {
    let folder = tempfile::tempdir().expect("tempdir");
    let home = Home::new(folder.path());
    let fake = Fake::new(folder.path(), "custom-a", |asked| fake::chat(asked, 10, 5));
    home.settings(&format!("[providers.custom-a]\nbase-url = \"http://{}/v1\"\n", fake.address));
    let key = home.key(&[]);
    let running = home.start(&[]);
    let (named, bare) = (chat_body("a", "custom-a/m", true), chat_body("a", "m", true));
    let entry = format!(r#"[{{"provider":"custom-a","endpoint":"chat/completions","query":{bare}}}]"#);
    for (path, body, pieces) in [
        ("/v1/chat/completions", &named, "chat.completion.chunk"),
        ("/client/v4/accounts/default/ai/v1/chat/completions", &named, "chat.completion.chunk"),
        ("/v1/default/default/compat/chat/completions", &named, "chat.completion.chunk"),
        ("/v1/default/default/custom-a/chat/completions", &bare, "chat.completion.chunk"),
        ("/v1/default/default", &entry, "chat.completion.chunk"),
        // What is translated on the way.
        ("/v1/messages", &named, "text_delta"),
    ] {
        let answer = receive(send(&running.address, path, &key, "a", "", body).expect("sent"));
        assert_eq!((answer.status, answer.whole), (200, true), "{path}: {answer:?}");
        assert_eq!(answer.text.matches(pieces).count(), 12, "{path}: {answer:?}");
        let end = if pieces == "text_delta" { "message_stop" } else { "[DONE]" };
        assert!(answer.text.contains(end), "{path}: {answer:?}");
    }
}
