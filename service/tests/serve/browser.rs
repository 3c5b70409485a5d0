//! A real Chromium without a window, driven by its DevTools protocol over pipes: no port, no driver, no library.

use std::{path::Path, process::Stdio, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::{sleep, timeout},
};

use crate::DEADLINE;

/// A browser with one page.
pub(crate) struct Browser {
    _child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    number: u64,
    session: Option<String>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts Chromium; `None` where there is none.
    pub(crate) async fn start() -> Option<Self> {
        let mut found = None;
        for name in ["chromium", "chromium-browser", "google-chrome"] {
            let asked = Command::new(name).arg("--version").output().await;
            if asked.is_ok_and(|said| said.status.success()) {
                found = Some(name);
                break;
            }
        }
        let profile = tempfile::tempdir().unwrap();
        // The protocol is spoken on the descriptors 3 and 4.
        let line = "exec \"$0\" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars \
                    --user-data-dir=\"$1\" --remote-debugging-pipe about:blank 3<&0 4>&1 </dev/null >/dev/null 2>&1";
        let mut child = Command::new("sh")
            .args(["-c", line, found?])
            .arg(profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut browser = Self {
            commands: child.stdin.take().unwrap(),
            answers: BufReader::new(child.stdout.take().unwrap()),
            _child: child,
            number: 0,
            session: None,
            _profile: profile,
        };
        let made = browser
            .ask("Target.createTarget", json!({"url": "about:blank"}))
            .await;
        let attach = json!({"targetId": made["targetId"], "flatten": true});
        let attached = browser.ask("Target.attachToTarget", attach).await;
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        Some(browser)
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.number += 1;
        let mut asked = json!({"id": self.number, "method": method, "params": params});
        if let Some(session) = &self.session {
            asked["sessionId"] = json!(session);
        }
        let mut line = asked.to_string().into_bytes();
        line.push(0);
        self.commands.write_all(&line).await.unwrap();
        loop {
            let mut bytes = Vec::new();
            let read = self.answers.read_until(0, &mut bytes);
            timeout(DEADLINE, read).await.expect("it answers").unwrap();
            bytes.pop();
            let mut said: Value = serde_json::from_slice(&bytes).expect("it speaks JSON");
            if said["id"] == json!(self.number) {
                assert!(said.get("error").is_none(), "{method}: {said}");
                return said["result"].take();
            }
        }
    }

    /// The value of a JavaScript expression.
    pub(crate) async fn value(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "returnByValue": true});
        let mut said = self.ask("Runtime.evaluate", asked).await;
        said["result"]["value"].take()
    }

    pub(crate) async fn goes_to(&mut self, url: &str) {
        self.ask("Page.navigate", json!({"url": url})).await;
    }

    /// Waits until the page says this.
    pub(crate) async fn sees(&mut self, words: &str) {
        let mut text = Value::Null;
        let seen = timeout(DEADLINE, async {
            loop {
                text = self
                    .value("document.body ? document.body.innerText : ''")
                    .await;
                if text.as_str().is_some_and(|text| text.contains(words)) {
                    return;
                }
                sleep(Duration::from_millis(50)).await;
            }
        });
        let is_seen = seen.await.is_ok();
        assert!(is_seen, "{words:?} is not on the page: {text}");
    }

    /// Waits until the element with this id has the focus.
    pub(crate) async fn focuses(&mut self, id: &str) {
        let focused = timeout(DEADLINE, async {
            while self
                .value("document.activeElement ? document.activeElement.id : ''")
                .await
                != json!(id)
            {
                sleep(Duration::from_millis(50)).await;
            }
        });
        assert!(focused.await.is_ok(), "{id} has no focus");
    }

    /// Clicks on the first element that fits, with the mouse.
    pub(crate) async fn clicks(&mut self, selector: &str) {
        let place = format!(
            "(() => {{ const e = document.querySelector({}); if (!e) return null; e.scrollIntoView({{block: 'center'}}); const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2] }})()",
            json!(selector)
        );
        let at = self.value(&place).await;
        assert!(at.is_array(), "there is no {selector}");
        for kind in ["mousePressed", "mouseReleased"] {
            let event =
                json!({"type": kind, "x": at[0], "y": at[1], "button": "left", "clickCount": 1});
            self.ask("Input.dispatchMouseEvent", event).await;
        }
    }

    pub(crate) async fn types(&mut self, text: &str) {
        self.ask("Input.insertText", json!({"text": text})).await;
    }

    /// Presses Enter.
    pub(crate) async fn enters(&mut self) {
        for kind in ["keyDown", "keyUp"] {
            let event = json!({"type": kind, "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"});
            self.ask("Input.dispatchKeyEvent", event).await;
        }
    }

    /// A window of this width, in light or dark.
    pub(crate) async fn looks(&mut self, width: u32, scheme: &str) {
        let size =
            json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600});
        self.ask("Emulation.setDeviceMetricsOverride", size).await;
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.ask("Emulation.setEmulatedMedia", media).await;
    }

    /// Keeps a picture, where `RETRYRMQ_SCREENSHOTS` names a folder.
    pub(crate) async fn picture(&mut self, name: &str) {
        let Some(folder) = std::env::var_os("RETRYRMQ_SCREENSHOTS") else {
            return;
        };
        let said = self
            .ask(
                "Page.captureScreenshot",
                json!({"captureBeyondViewport": true}),
            )
            .await;
        let bytes = BASE64_STANDARD
            .decode(said["data"].as_str().unwrap())
            .unwrap();
        std::fs::write(Path::new(&folder).join(format!("{name}.png")), bytes).unwrap();
    }
}
