//! The example of `consume --http`, run as its README prints it.

use std::{path::Path, process::Stdio};

use retryrmq_harness::{eventually, free_port, on_brokers};
use rustix::process::Signal;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpStream,
    process::{Child, Command},
    time::timeout,
};

use crate::fixture::{DEADLINE, Fixture, QUEUE, finish};

/// What the README has in its one block: commands, and what is printed.
fn printed(folder: &Path) -> (Vec<String>, Vec<String>) {
    let readme = std::fs::read_to_string(folder.join("README.md")).expect("it is there");
    let block = readme.split("```console\n").nth(1).expect("a block");
    let lines = block.split("```").next().expect("its end").lines();
    let (commands, said): (Vec<_>, Vec<_>) = lines.partition(|line| line.starts_with("$ "));
    let commands = commands.iter().map(|line| line[2..].to_owned()).collect();
    (commands, said.into_iter().map(str::to_owned).collect())
}

fn endpoint(folder: &Path, words: &[&str]) -> Child {
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    command.spawn().expect("python3 is installed")
}

#[tokio::test]
async fn the_endpoint_of_the_readme_does_what_it_says() {
    on_brokers(|broker| async move {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/http");
        let (commands, said) = printed(&folder);
        let [serve, setup @ .., consume] = &commands[..] else {
            panic!("{commands:?}");
        };
        // In place of the printed one, which several tests would share.
        let port = free_port();
        let at_port = |command: &str| command.replace("8080", &port.to_string());
        let fixture = Fixture::of(&broker).await;

        let serve = at_port(serve.strip_suffix(" &").expect("it runs beside"));
        let mut endpoint = endpoint(&folder, &serve.split(' ').collect::<Vec<_>>());
        let mut lines = BufReader::new(endpoint.stdout.take().unwrap()).lines();
        eventually(DEADLINE, "the endpoint listens", || async {
            let connected = TcpStream::connect(("127.0.0.1", port)).await;
            connected.map(drop).map_err(|why| why.to_string())
        })
        .await;
        let words = |command: &str| {
            let words = shell_words::split(command).expect("a shell reads it");
            assert_eq!(words[0], "retryrmq", "{command}");
            words[1..].to_vec()
        };
        for command in setup {
            let words = words(command);
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            finish(fixture.command(&words), None).await.exits(0);
        }
        let words = words(&at_port(consume));
        let consumer = fixture.start_with(&words.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(!said.is_empty());
        for expected in said {
            let line = timeout(DEADLINE, lines.next_line()).await;
            let line = line.expect("it handles the order").unwrap();
            assert_eq!(line.as_deref(), Some(&*expected));
        }
        consumer.signal(Signal::INT);
        consumer.end().await;
        fixture.holds(QUEUE, 0).await;
        endpoint.kill().await.unwrap();
    })
    .await;
}
