//! What the configuration file says of bodies. A fault in it names its line and column.

use std::path::Path;

use serde::{Deserialize, de::IgnoredAny};
use toml::Spanned;

use super::{
    decoders::{self, Decoders},
    error::SpannedError,
};

/// What a configuration file says of bodies.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Bodies {
    /// How bodies are to be read.
    pub decoders: Decoders,
}

/// The tables of the file. An unknown one is a fault: a misspelt name must not be silently nothing.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BodyTables {
    #[serde(default)]
    decoders: Vec<Spanned<decoders::DecoderEntry>>,
    // Read by `setup`, and no matter of bodies.
    #[serde(rename = "policies")]
    _policies: Option<IgnoredAny>,
    #[serde(rename = "queues")]
    _queues: Option<IgnoredAny>,
    #[serde(rename = "permissions")]
    _permissions: Option<IgnoredAny>,
}

impl Bodies {
    /// Reads a file, and the schemas that it names: paths in it are relative to it.
    ///
    /// # Errors
    /// A sentence that names the file and, where it is its contents, line and column.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|why| format!("cannot read the configuration `{}`: {why}", path.display()))?;
        let folder = path.parent().map(Path::to_owned).unwrap_or_default();
        Self::parse(&text, &folder)
            .map_err(|fault| format!("{}{}", path.display(), fault.place(&text)))
    }

    fn parse(text: &str, folder: &Path) -> Result<Self, SpannedError> {
        let tables: BodyTables = toml::from_str(text).map_err(|error| SpannedError::of(&error))?;
        Ok(Self {
            decoders: Decoders::read(tables.decoders, folder)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use retryrmq_harness::fuzz::{fuzz, gist};
    use serde_json::json;

    use super::super::MessageFacts;
    use super::*;
    use crate::decoding::{self, Format, Hints};

    const SOUND: &str = "[[decoders]]\nqueue = 'orders*'\nrouting_key = 'eu.#'\nheader = { kind = 'm*' }\nformat = 'messagepack'\n\n[[decoders]]\ncontent_type = 'application/*'\nformat = 'text'\n";

    fn fault(text: &str) -> String {
        Bodies::parse(text, Path::new("/nowhere"))
            .unwrap_err()
            .place(text)
    }

    #[test]
    fn the_first_decoder_whose_conditions_all_hold_reads_the_body() {
        let all = Bodies::parse(SOUND, Path::new("")).unwrap().decoders;
        let headers = json!({"kind": "mp", "n": 1});
        let headers = headers.as_object().unwrap();
        let mut facts = MessageFacts {
            queue: "orders.eu",
            routing_key: "eu.new",
            content_type: Some("application/octet-stream"),
            headers,
        };
        let format = |facts: &MessageFacts<'_>| {
            decoding::decode(b"\x81\xa1a\x01", Hints::default(), all.find(facts)).format
        };
        assert_eq!(format(&facts), Format::MessagePack);
        facts.routing_key = "us.new";
        assert_eq!(format(&facts), Format::Text);
        facts.content_type = None;
        assert!(all.find(&facts).is_none());
    }

    #[test]
    fn faults_name_line_and_column() {
        for (text, place, words) in [
            (
                "[[decoders]]\nqueue = 'a'\nformt = 'json'\n",
                " line 3, column 1:",
                "formt",
            ),
            ("[decodrs]\n", " line 1, column 2:", "decodrs"),
            ("[[decoders]]\nqueue = 'a\n", " line 2,", ""),
            (
                "\n[[decoders]]\nqueue = 'a'\n",
                " line 2, column 1:",
                "one of `proto`, `avro` and `format`",
            ),
            (
                "[[decoders]]\nformat = 'xml'\n",
                " line 2, column 10:",
                "`messagepack`",
            ),
            (
                "[[decoders]]\nformat = 'json'\navro = 'x'\n",
                " line 1, column 1:",
                "one of",
            ),
            (
                "[[decoders]]\nformat = 'json'\ntype = 'x'\n",
                " line 3, column 8:",
                "`proto`",
            ),
            (
                "[[decoders]]\nproto = 'none.pb'\n",
                " line 2, column 9:",
                "none.pb",
            ),
            ("[[decoders]]\navro = 7\n", " line 2, column 8:", "string"),
        ] {
            let said = fault(text);
            assert!(
                said.starts_with(place) && said.contains(words),
                "{text}: {said}"
            );
        }
    }

    #[test]
    fn any_text_is_a_configuration_or_a_sentence() {
        let seeds: [&[u8]; 2] = [
            SOUND.as_bytes(),
            b"[[decoders]]\nproto = \"a.pb\"\ntype = \"x.Y\"\n",
        ];
        let words = [
            "[[", "]]", "decoders", "=", "'", "\"", "{", "}", "\n", "queue", "proto", "avro",
            "format", "header", "#",
        ];
        fuzz(&seeds, &words, |text| {
            let text = String::from_utf8_lossy(text);
            match Bodies::parse(&text, Path::new("/nowhere")) {
                Ok(_) => "sound".to_owned(),
                Err(fault) => gist(&fault.place(&text)),
            }
        });
    }
}
