//! A handler that fails twice, and a message that comes back until it succeeds. Ends with Ctrl-C.

use retryrmq::{Client, ClientOptions, Message};

async fn handle(message: Message) -> std::io::Result<()> {
    let order = String::from_utf8_lossy(message.body());
    println!("attempt {} of order {order}", message.attempt());
    if message.attempt() < 3 {
        return Err(std::io::Error::other("the database is restarting"));
    }
    Ok(())
}

#[tokio::main]
async fn main() -> retryrmq::Result<()> {
    let rmq = Client::from_env(ClientOptions::new()).await?;
    let ctrl_c = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    let orders = rmq.consumer("orders").dlx(true);
    orders.run_until(ctrl_c, handle).await // and then drains
}
