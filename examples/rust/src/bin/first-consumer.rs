//! A handler that fails twice, and a message that comes back until it succeeds. Ends with Ctrl-C.

use retryrmq::{Client, ClientOptions, Message};
use tokio::signal::{
    ctrl_c,
    unix::{SignalKind, signal},
};

async fn handle(message: Message) -> std::io::Result<()> {
    let order = String::from_utf8_lossy(message.body());
    println!("attempt {} of order {order}", message.attempt());
    if message.attempt() < 3 {
        return Err(std::io::Error::other("the database is restarting"));
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rmq = Client::from_env(ClientOptions::new()).await?;
    let mut sigterm = signal(SignalKind::terminate())?; // on Unix
    let asked_to_stop = async {
        tokio::select! {
            _ = ctrl_c() => {}
            _ = sigterm.recv() => {}
        }
    };
    let orders = rmq.consumer("orders").dlx(true);
    orders.run_until(asked_to_stop, handle).await?; // and then drains
    Ok(())
}
