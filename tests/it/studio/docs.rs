//! The reference of the API in the studio.

use serde_json::Value;
use tintype::http::docs::openapi_json;

use crate::rigs::service::Service;

#[tokio::test]
async fn the_reference_names_this_server_and_every_operation() {
    let service = Service::start().await;
    let page = service.visitor("ada", 10).await.page("/studio/docs").await;
    let document: Value = serde_json::from_str(&openapi_json()).expect("JSON");
    let mut operations = 0;
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for method in methods.as_object().expect("methods").keys() {
            let call = format!("{} http://{}{path}", method.to_uppercase(), service.address);
            assert!(page.contains(&call), "{call}");
            operations += 1;
        }
    }
    assert!(operations >= 4);
    for shown in [
        "reference_images",
        "INSUFFICIENT_CREDITS",
        "<code>completed</code>",
        "TINTYPE_KEY",
        "/studio/keys",
        "/v1<",
        "/mcp<",
    ] {
        assert!(page.contains(shown), "{shown}");
    }
}
