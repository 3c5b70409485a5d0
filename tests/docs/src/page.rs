//! What is in a page of Markdown: headings, links and blocks of code.

use std::{collections::BTreeMap, ops::Range};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// A link or a picture.
#[derive(Debug)]
pub struct Link {
    /// Where it leads, as it is written.
    pub to: String,
    /// Where it stands in the text.
    pub range: Range<usize>,
    /// Whether it is a picture.
    pub is_image: bool,
}

/// A fenced block of code.
#[derive(Debug)]
pub struct Block {
    /// The word behind the fence.
    pub language: String,
    /// What is within, without indentation.
    pub code: String,
    /// The comment in the line above the fence, if there is one.
    pub note: Option<String>,
    /// The line of the fence, from 1.
    pub line: usize,
    /// Where the whole block stands in the text, fences included.
    pub range: Range<usize>,
}

/// What was found in a page.
#[derive(Debug, Default)]
pub struct Page {
    /// The names that a link may have behind `#`.
    pub anchors: Vec<String>,
    /// In their order.
    pub links: Vec<Link>,
    /// In their order.
    pub blocks: Vec<Block>,
}

/// The name that GitHub and mdBook give a heading.
#[must_use]
pub fn slug(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|c| match c {
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
        c if c.is_whitespace() => Some('-'),
        _ => None,
    });
    kept.flat_map(char::to_lowercase).collect()
}

/// The value of each `id="…"` or `name="…"` in a piece of HTML.
fn ids(html: &str) -> impl Iterator<Item = String> + '_ {
    [" id=\"", " name=\""].into_iter().flat_map(move |mark| {
        let rest = html.split(mark).skip(1);
        rest.filter_map(|rest| rest.split('"').next().map(str::to_owned))
    })
}

/// The links and pictures in a piece of HTML that stands at `start`.
fn targets(html: &str, start: usize) -> impl Iterator<Item = Link> + '_ {
    [("href=\"", false), (" src=\"", true)]
        .into_iter()
        .flat_map(move |(mark, is_image)| {
            html.match_indices(mark).map(move |(at, _)| {
                let at = at + mark.len();
                let to = html[at..].split('"').next().unwrap_or_default();
                Link {
                    to: to.to_owned(),
                    range: start + at..start + at + to.len(),
                    is_image,
                }
            })
        })
}

/// Reads a page.
#[must_use]
pub fn read(text: &str) -> Page {
    let options =
        Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES | Options::ENABLE_STRIKETHROUGH;
    let mut page = Page::default();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut heading: Option<String> = None;
    let mut code: Option<Block> = None;
    for (event, range) in Parser::new_ext(text, options).into_offset_iter() {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let name = slug(&heading.take().unwrap_or_default());
                let before = seen.entry(name.clone()).or_default();
                page.anchors.push(match *before {
                    0 => name,
                    n => format!("{name}-{n}"),
                });
                *before += 1;
            }
            Event::Start(Tag::Link { dest_url, .. }) => page.links.push(Link {
                to: dest_url.into_string(),
                range,
                is_image: false,
            }),
            Event::Start(Tag::Image { dest_url, .. }) => page.links.push(Link {
                to: dest_url.into_string(),
                range,
                is_image: true,
            }),
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(word))) => {
                let before = text[..range.start].trim_end_matches([' ', '>']);
                let note = before.lines().next_back().map(str::trim);
                let note = note.and_then(|line| line.strip_prefix("<!-- ")?.strip_suffix(" -->"));
                code = Some(Block {
                    language: word.into_string(),
                    code: String::new(),
                    note: note.map(str::to_owned),
                    line: text[..range.start].matches('\n').count() + 1,
                    range,
                });
            }
            Event::End(TagEnd::CodeBlock) => page.blocks.extend(code.take()),
            Event::Text(words) => {
                if let Some(block) = &mut code {
                    block.code.push_str(&words);
                } else if let Some(heading) = &mut heading {
                    heading.push_str(&words);
                }
            }
            Event::Code(words) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&words);
                }
            }
            Event::Html(html) | Event::InlineHtml(html) => {
                page.anchors.extend(ids(&html));
                page.links
                    .extend(targets(&text[range.clone()], range.start));
            }
            _ => {}
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_those_of_github() {
        let page = read("# A `dlx`, and *more*!\n\n## Twice\n\n## Twice\n\n<a id=\"own\"></a>\n");
        assert_eq!(page.anchors, ["a-dlx-and-more", "twice", "twice-1", "own"]);
    }

    #[test]
    fn links_in_html_are_links() {
        let text = "a <a href=\"b.md#c\">b</a>\n\n<img src=\"d.svg\">\n";
        let page = read(text);
        let links: Vec<_> = page
            .links
            .iter()
            .map(|link| (&text[link.range.clone()], link.is_image))
            .collect();
        assert_eq!(links, [("b.md#c", false), ("d.svg", true)]);
        assert_eq!(page.links[0].to, "b.md#c");
    }

    #[test]
    fn a_block_knows_its_note_and_its_line() {
        let page = read("one\n\n<!-- a/b.py#c -->\n```python\nx = 1\n```\n\n```toml\n```\n");
        let (first, second) = (&page.blocks[0], &page.blocks[1]);
        assert_eq!(first.note.as_deref(), Some("a/b.py#c"));
        assert_eq!(
            (first.line, &*first.language, &*first.code),
            (4, "python", "x = 1\n")
        );
        assert_eq!(second.note, None);
    }
}
