// The functions of the native library. Written by bindings-go/header.

#pragma once

#include <stdint.h>

// Bytes that Rust has allocated.
typedef struct RustBuffer {
    uint64_t capacity;
    uint64_t len;
    uint8_t *data;
} RustBuffer;

// Bytes that Rust reads during a call.
typedef struct ForeignBytes {
    int32_t len;
    const uint8_t *data;
} ForeignBytes;

// The result of a call: 0 for success, 1 for an error, 2 for a panic.
typedef struct RustCallStatus {
    int8_t code;
    RustBuffer error_buf;
} RustCallStatus;

uint64_t uniffi_retryrmq_go_fn_clone_client(uint64_t handle, RustCallStatus *status);
void uniffi_retryrmq_go_fn_free_client(uint64_t handle, RustCallStatus *status);
void uniffi_retryrmq_go_fn_method_client_check_end(uint64_t ptr, RustCallStatus *status);
uint64_t uniffi_retryrmq_go_fn_method_client_close(uint64_t ptr, uint64_t ticket, RustCallStatus *status);
RustBuffer uniffi_retryrmq_go_fn_method_client_metrics_text(uint64_t ptr, RustCallStatus *status);
uint64_t uniffi_retryrmq_go_fn_method_client_parked(uint64_t ptr, RustBuffer queue, uint64_t ticket, RustCallStatus *status);
uint64_t uniffi_retryrmq_go_fn_method_client_publish(uint64_t ptr, RustBuffer outgoing, RustBuffer body, uint64_t ticket, RustCallStatus *status);
uint64_t uniffi_retryrmq_go_fn_method_client_reconnects(uint64_t ptr, RustCallStatus *status);
RustBuffer uniffi_retryrmq_go_fn_method_client_server(uint64_t ptr, RustCallStatus *status);
uint64_t uniffi_retryrmq_go_fn_method_client_subscribe(uint64_t ptr, uint64_t options, uint64_t listener, uint64_t ticket, RustCallStatus *status);
RustBuffer uniffi_retryrmq_go_fn_method_client_trouble(uint64_t ptr, RustCallStatus *status);
uint64_t uniffi_retryrmq_go_fn_clone_operation(uint64_t handle, RustCallStatus *status);
void uniffi_retryrmq_go_fn_free_operation(uint64_t handle, RustCallStatus *status);
uint64_t uniffi_retryrmq_go_fn_method_operation_client(uint64_t ptr, RustCallStatus *status);
void uniffi_retryrmq_go_fn_method_operation_nothing(uint64_t ptr, RustCallStatus *status);
RustBuffer uniffi_retryrmq_go_fn_method_operation_record(uint64_t ptr, RustCallStatus *status);
uint64_t uniffi_retryrmq_go_fn_method_operation_walk(uint64_t ptr, RustCallStatus *status);
uint64_t uniffi_retryrmq_go_fn_method_operation_subscription(uint64_t ptr, RustCallStatus *status);
uint64_t uniffi_retryrmq_go_fn_clone_options(uint64_t handle, RustCallStatus *status);
void uniffi_retryrmq_go_fn_free_options(uint64_t handle, RustCallStatus *status);
uint64_t uniffi_retryrmq_go_fn_constructor_options_new(RustBuffer given, RustCallStatus *status);
RustBuffer uniffi_retryrmq_go_fn_method_options_summary(uint64_t ptr, RustCallStatus *status);
uint64_t uniffi_retryrmq_go_fn_clone_walk(uint64_t handle, RustCallStatus *status);
void uniffi_retryrmq_go_fn_free_walk(uint64_t handle, RustCallStatus *status);
uint64_t uniffi_retryrmq_go_fn_method_walk_close(uint64_t ptr, uint64_t ticket, RustCallStatus *status);
uint64_t uniffi_retryrmq_go_fn_method_walk_discard(uint64_t ptr, uint64_t number, uint64_t ticket, RustCallStatus *status);
void uniffi_retryrmq_go_fn_method_walk_forget(uint64_t ptr, uint64_t number, RustCallStatus *status);
uint64_t uniffi_retryrmq_go_fn_method_walk_next(uint64_t ptr, uint64_t ticket, RustCallStatus *status);
uint64_t uniffi_retryrmq_go_fn_method_walk_replay(uint64_t ptr, uint64_t number, uint64_t ticket, RustCallStatus *status);
uint64_t uniffi_retryrmq_go_fn_method_walk_replay_to(uint64_t ptr, uint64_t number, RustBuffer queue, uint64_t ticket, RustCallStatus *status);
RustBuffer uniffi_retryrmq_go_fn_method_walk_status(uint64_t ptr, RustCallStatus *status);
uint64_t uniffi_retryrmq_go_fn_clone_simulation(uint64_t handle, RustCallStatus *status);
void uniffi_retryrmq_go_fn_free_simulation(uint64_t handle, RustCallStatus *status);
uint64_t uniffi_retryrmq_go_fn_constructor_simulation_new(uint64_t options, RustCallStatus *status);
uint64_t uniffi_retryrmq_go_fn_method_simulation_elapsed(uint64_t ptr, RustCallStatus *status);
RustBuffer uniffi_retryrmq_go_fn_method_simulation_next(uint64_t ptr, RustCallStatus *status);
void uniffi_retryrmq_go_fn_method_simulation_publish(uint64_t ptr, RustBuffer outgoing, RustBuffer body, RustCallStatus *status);
RustBuffer uniffi_retryrmq_go_fn_method_simulation_settle(uint64_t ptr, uint64_t token, RustBuffer end, RustCallStatus *status);
uint64_t uniffi_retryrmq_go_fn_clone_subscription(uint64_t handle, RustCallStatus *status);
void uniffi_retryrmq_go_fn_free_subscription(uint64_t handle, RustCallStatus *status);
void uniffi_retryrmq_go_fn_method_subscription_close(uint64_t ptr, RustCallStatus *status);
RustBuffer uniffi_retryrmq_go_fn_method_subscription_exchange(uint64_t ptr, RustBuffer acks, int8_t slow, int8_t ended, uint32_t wait_ms, RustCallStatus *status);
void uniffi_retryrmq_go_fn_method_subscription_give_back(uint64_t ptr, RustBuffer unstarted, RustCallStatus *status);
void uniffi_retryrmq_go_fn_method_subscription_settle(uint64_t ptr, uint64_t token, RustBuffer end, RustCallStatus *status);
RustBuffer uniffi_retryrmq_go_fn_method_subscription_stats(uint64_t ptr, RustCallStatus *status);
uint64_t uniffi_retryrmq_go_fn_method_subscription_wait_closed(uint64_t ptr, uint64_t ticket, RustCallStatus *status);
uint64_t uniffi_retryrmq_go_fn_func_connect(RustBuffer options, uint64_t ticket, RustCallStatus *status);
void uniffi_retryrmq_go_fn_func_answer_credentials(uint64_t number, RustBuffer given, RustCallStatus *status);
RustBuffer uniffi_retryrmq_go_fn_func_fetch_notifications(uint32_t wait_ms, RustCallStatus *status);
void uniffi_retryrmq_go_fn_func_log_lines(int8_t least, RustCallStatus *status);
void uniffi_retryrmq_go_fn_func_wake_fetcher(RustCallStatus *status);
int64_t uniffi_retryrmq_go_fn_func_live_objects(RustCallStatus *status);
RustBuffer uniffi_retryrmq_go_fn_func_history(RustBuffer headers, RustCallStatus *status);
RustBuffer uniffi_retryrmq_go_fn_func_duration_text(uint64_t nanoseconds, RustCallStatus *status);
RustBuffer uniffi_retryrmq_go_fn_func_read_policy(RustBuffer text, RustCallStatus *status);
RustBuffer uniffi_retryrmq_go_fn_func_version(RustCallStatus *status);
RustBuffer ffi_retryrmq_go_rustbuffer_alloc(uint64_t size, RustCallStatus *status);
RustBuffer ffi_retryrmq_go_rustbuffer_from_bytes(ForeignBytes bytes, RustCallStatus *status);
void ffi_retryrmq_go_rustbuffer_free(RustBuffer buf, RustCallStatus *status);
RustBuffer ffi_retryrmq_go_rustbuffer_reserve(RustBuffer buf, uint64_t additional, RustCallStatus *status);
uint16_t uniffi_retryrmq_go_checksum_func_connect(void);
uint16_t uniffi_retryrmq_go_checksum_func_answer_credentials(void);
uint16_t uniffi_retryrmq_go_checksum_func_fetch_notifications(void);
uint16_t uniffi_retryrmq_go_checksum_func_log_lines(void);
uint16_t uniffi_retryrmq_go_checksum_func_wake_fetcher(void);
uint16_t uniffi_retryrmq_go_checksum_func_live_objects(void);
uint16_t uniffi_retryrmq_go_checksum_func_history(void);
uint16_t uniffi_retryrmq_go_checksum_func_duration_text(void);
uint16_t uniffi_retryrmq_go_checksum_func_read_policy(void);
uint16_t uniffi_retryrmq_go_checksum_func_version(void);
uint16_t uniffi_retryrmq_go_checksum_method_client_check_end(void);
uint16_t uniffi_retryrmq_go_checksum_method_client_close(void);
uint16_t uniffi_retryrmq_go_checksum_method_client_metrics_text(void);
uint16_t uniffi_retryrmq_go_checksum_method_client_parked(void);
uint16_t uniffi_retryrmq_go_checksum_method_client_publish(void);
uint16_t uniffi_retryrmq_go_checksum_method_client_reconnects(void);
uint16_t uniffi_retryrmq_go_checksum_method_client_server(void);
uint16_t uniffi_retryrmq_go_checksum_method_client_subscribe(void);
uint16_t uniffi_retryrmq_go_checksum_method_client_trouble(void);
uint16_t uniffi_retryrmq_go_checksum_method_operation_client(void);
uint16_t uniffi_retryrmq_go_checksum_method_operation_nothing(void);
uint16_t uniffi_retryrmq_go_checksum_method_operation_record(void);
uint16_t uniffi_retryrmq_go_checksum_method_operation_walk(void);
uint16_t uniffi_retryrmq_go_checksum_method_operation_subscription(void);
uint16_t uniffi_retryrmq_go_checksum_method_options_summary(void);
uint16_t uniffi_retryrmq_go_checksum_method_walk_close(void);
uint16_t uniffi_retryrmq_go_checksum_method_walk_discard(void);
uint16_t uniffi_retryrmq_go_checksum_method_walk_forget(void);
uint16_t uniffi_retryrmq_go_checksum_method_walk_next(void);
uint16_t uniffi_retryrmq_go_checksum_method_walk_replay(void);
uint16_t uniffi_retryrmq_go_checksum_method_walk_replay_to(void);
uint16_t uniffi_retryrmq_go_checksum_method_walk_status(void);
uint16_t uniffi_retryrmq_go_checksum_method_simulation_elapsed(void);
uint16_t uniffi_retryrmq_go_checksum_method_simulation_next(void);
uint16_t uniffi_retryrmq_go_checksum_method_simulation_publish(void);
uint16_t uniffi_retryrmq_go_checksum_method_simulation_settle(void);
uint16_t uniffi_retryrmq_go_checksum_method_subscription_close(void);
uint16_t uniffi_retryrmq_go_checksum_method_subscription_exchange(void);
uint16_t uniffi_retryrmq_go_checksum_method_subscription_give_back(void);
uint16_t uniffi_retryrmq_go_checksum_method_subscription_settle(void);
uint16_t uniffi_retryrmq_go_checksum_method_subscription_stats(void);
uint16_t uniffi_retryrmq_go_checksum_method_subscription_wait_closed(void);
uint16_t uniffi_retryrmq_go_checksum_constructor_options_new(void);
uint16_t uniffi_retryrmq_go_checksum_constructor_simulation_new(void);
uint32_t ffi_retryrmq_go_uniffi_contract_version(void);
