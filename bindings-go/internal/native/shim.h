// One function per call from Go: clone the handle, move the bytes, call, look at the status. One crossing instead of four,
// and no RustBuffer in a Go frame: an empty one holds the pointer 0x1, at which Go's garbage collector ends the process.

#pragma once

#include <stdbool.h>
#include <string.h>

#include "retryrmq_go.h"

// What a call gave: a number, bytes that rr_take moves into Go's memory, or the bytes of an error (code is not 0).
typedef struct rr_answer {
    uint64_t value;
    uintptr_t data;
    uint64_t len;
    uint64_t capacity;
    int64_t code;
} rr_answer;

static inline RustBuffer rr_lend(const void *bytes, int32_t len) {
    RustBuffer none = {0, 0, NULL};
    if (len == 0) return none;
    RustCallStatus status = {0};
    ForeignBytes foreign = {len, (const uint8_t *)bytes};
    return ffi_retryrmq_go_rustbuffer_from_bytes(foreign, &status);
}

static inline rr_answer rr_bytes(RustBuffer buffer, RustCallStatus status) {
    RustBuffer got = status.code == 0 ? buffer : status.error_buf;
    rr_answer answer = {0, 0, got.len, got.capacity, status.code};
    if (got.capacity != 0) answer.data = (uintptr_t)got.data;
    return answer;
}

static inline rr_answer rr_value(uint64_t value, RustCallStatus status) {
    RustBuffer none = {0, 0, NULL};
    rr_answer answer = rr_bytes(none, status);
    answer.value = value;
    return answer;
}

// Moves the bytes of an answer to `into`, which has room for all of them.
static inline void rr_take(void *into, uintptr_t data, uint64_t len, uint64_t capacity) {
    if (len != 0) memcpy(into, (const void *)data, len);
    if (capacity != 0) {
        RustBuffer buffer = {capacity, len, (uint8_t *)data};
        RustCallStatus status = {0};
        ffi_retryrmq_go_rustbuffer_free(buffer, &status);
    }
}

#define RR_VALUE(call) RustCallStatus status = {0}; uint64_t value = (uint64_t)(call); return rr_value(value, status)
#define RR_BYTES(call) RustCallStatus status = {0}; RustBuffer buffer = (call); return rr_bytes(buffer, status)
#define RR_NOTHING(call) RustCallStatus status = {0}; (call); return rr_value(0, status)
#define RR_CLONE(kind, self) uniffi_retryrmq_go_fn_clone_##kind(self, &status)
#define RR_FREE(kind)                                                \
    static inline void rr_free_##kind(uint64_t self) {               \
        RustCallStatus status = {0};                                 \
        uniffi_retryrmq_go_fn_free_##kind(self, &status);            \
    }

RR_FREE(client)
RR_FREE(operation)
RR_FREE(options)
RR_FREE(simulation)
RR_FREE(subscription)
RR_FREE(walk)

static inline rr_answer rr_connect(const void *options, int32_t len, uint64_t ticket) {
    RR_VALUE(uniffi_retryrmq_go_fn_func_connect(rr_lend(options, len), ticket, &status));
}

static inline rr_answer rr_client_subscribe(uint64_t self, uint64_t options, uint64_t listener, uint64_t ticket) {
    RR_VALUE(uniffi_retryrmq_go_fn_method_client_subscribe(RR_CLONE(client, self), RR_CLONE(options, options), listener,
                                                           ticket, &status));
}

static inline rr_answer rr_client_publish(uint64_t self, const void *outgoing, int32_t len, const void *body,
                                          int32_t body_len, uint64_t ticket) {
    RR_VALUE(uniffi_retryrmq_go_fn_method_client_publish(RR_CLONE(client, self), rr_lend(outgoing, len),
                                                         rr_lend(body, body_len), ticket, &status));
}

static inline rr_answer rr_client_parked(uint64_t self, const void *queue, int32_t len, uint64_t ticket) {
    RR_VALUE(uniffi_retryrmq_go_fn_method_client_parked(RR_CLONE(client, self), rr_lend(queue, len), ticket, &status));
}

static inline rr_answer rr_client_close(uint64_t self, uint64_t ticket) {
    RR_VALUE(uniffi_retryrmq_go_fn_method_client_close(RR_CLONE(client, self), ticket, &status));
}

static inline rr_answer rr_client_metrics_text(uint64_t self) {
    RR_BYTES(uniffi_retryrmq_go_fn_method_client_metrics_text(RR_CLONE(client, self), &status));
}

static inline rr_answer rr_client_trouble(uint64_t self) {
    RR_BYTES(uniffi_retryrmq_go_fn_method_client_trouble(RR_CLONE(client, self), &status));
}

static inline rr_answer rr_client_check_end(uint64_t self) {
    RR_NOTHING(uniffi_retryrmq_go_fn_method_client_check_end(RR_CLONE(client, self), &status));
}

static inline rr_answer rr_client_reconnects(uint64_t self) {
    RR_VALUE(uniffi_retryrmq_go_fn_method_client_reconnects(RR_CLONE(client, self), &status));
}

static inline rr_answer rr_client_server(uint64_t self) {
    RR_BYTES(uniffi_retryrmq_go_fn_method_client_server(RR_CLONE(client, self), &status));
}

static inline rr_answer rr_operation_nothing(uint64_t self) {
    RR_NOTHING(uniffi_retryrmq_go_fn_method_operation_nothing(RR_CLONE(operation, self), &status));
}

static inline rr_answer rr_operation_client(uint64_t self) {
    RR_VALUE(uniffi_retryrmq_go_fn_method_operation_client(RR_CLONE(operation, self), &status));
}

static inline rr_answer rr_operation_subscription(uint64_t self) {
    RR_VALUE(uniffi_retryrmq_go_fn_method_operation_subscription(RR_CLONE(operation, self), &status));
}

static inline rr_answer rr_operation_walk(uint64_t self) {
    RR_VALUE(uniffi_retryrmq_go_fn_method_operation_walk(RR_CLONE(operation, self), &status));
}

static inline rr_answer rr_operation_record(uint64_t self) {
    RR_BYTES(uniffi_retryrmq_go_fn_method_operation_record(RR_CLONE(operation, self), &status));
}

static inline rr_answer rr_options_new(const void *options, int32_t len) {
    RR_VALUE(uniffi_retryrmq_go_fn_constructor_options_new(rr_lend(options, len), &status));
}

static inline rr_answer rr_options_summary(uint64_t self) {
    RR_BYTES(uniffi_retryrmq_go_fn_method_options_summary(RR_CLONE(options, self), &status));
}

static inline rr_answer rr_subscription_exchange(uint64_t self, const void *acks, int32_t len, bool slow,
                                                 bool ended, uint32_t wait_ms) {
    RR_BYTES(uniffi_retryrmq_go_fn_method_subscription_exchange(RR_CLONE(subscription, self), rr_lend(acks, len), slow,
                                                                ended, wait_ms, &status));
}

static inline rr_answer rr_subscription_settle(uint64_t self, uint64_t token, const void *end, int32_t len) {
    RR_NOTHING(uniffi_retryrmq_go_fn_method_subscription_settle(RR_CLONE(subscription, self), token,
                                                                rr_lend(end, len), &status));
}

static inline rr_answer rr_subscription_give_back(uint64_t self, const void *tokens, int32_t len) {
    RR_NOTHING(uniffi_retryrmq_go_fn_method_subscription_give_back(RR_CLONE(subscription, self), rr_lend(tokens, len),
                                                                   &status));
}

static inline rr_answer rr_subscription_close(uint64_t self) {
    RR_NOTHING(uniffi_retryrmq_go_fn_method_subscription_close(RR_CLONE(subscription, self), &status));
}

static inline rr_answer rr_subscription_wait_closed(uint64_t self, uint64_t ticket) {
    RR_VALUE(uniffi_retryrmq_go_fn_method_subscription_wait_closed(RR_CLONE(subscription, self), ticket, &status));
}

static inline rr_answer rr_subscription_stats(uint64_t self) {
    RR_BYTES(uniffi_retryrmq_go_fn_method_subscription_stats(RR_CLONE(subscription, self), &status));
}

static inline rr_answer rr_walk_next(uint64_t self, uint64_t ticket) {
    RR_VALUE(uniffi_retryrmq_go_fn_method_walk_next(RR_CLONE(walk, self), ticket, &status));
}

static inline rr_answer rr_walk_replay(uint64_t self, uint64_t number, uint64_t ticket) {
    RR_VALUE(uniffi_retryrmq_go_fn_method_walk_replay(RR_CLONE(walk, self), number, ticket, &status));
}

static inline rr_answer rr_walk_replay_to(uint64_t self, uint64_t number, const void *queue, int32_t len,
                                          uint64_t ticket) {
    RR_VALUE(uniffi_retryrmq_go_fn_method_walk_replay_to(RR_CLONE(walk, self), number, rr_lend(queue, len), ticket,
                                                         &status));
}

static inline rr_answer rr_walk_status(uint64_t self) {
    RR_BYTES(uniffi_retryrmq_go_fn_method_walk_status(RR_CLONE(walk, self), &status));
}

static inline rr_answer rr_walk_discard(uint64_t self, uint64_t number, uint64_t ticket) {
    RR_VALUE(uniffi_retryrmq_go_fn_method_walk_discard(RR_CLONE(walk, self), number, ticket, &status));
}

static inline rr_answer rr_walk_forget(uint64_t self, uint64_t number) {
    RR_NOTHING(uniffi_retryrmq_go_fn_method_walk_forget(RR_CLONE(walk, self), number, &status));
}

static inline rr_answer rr_walk_close(uint64_t self, uint64_t ticket) {
    RR_VALUE(uniffi_retryrmq_go_fn_method_walk_close(RR_CLONE(walk, self), ticket, &status));
}

static inline rr_answer rr_simulation_new(uint64_t options) {
    RR_VALUE(uniffi_retryrmq_go_fn_constructor_simulation_new(RR_CLONE(options, options), &status));
}

static inline rr_answer rr_simulation_publish(uint64_t self, const void *outgoing, int32_t len, const void *body,
                                              int32_t body_len) {
    RR_NOTHING(uniffi_retryrmq_go_fn_method_simulation_publish(RR_CLONE(simulation, self), rr_lend(outgoing, len),
                                                               rr_lend(body, body_len), &status));
}

static inline rr_answer rr_simulation_next(uint64_t self) {
    RR_BYTES(uniffi_retryrmq_go_fn_method_simulation_next(RR_CLONE(simulation, self), &status));
}

static inline rr_answer rr_simulation_elapsed(uint64_t self) {
    RR_VALUE(uniffi_retryrmq_go_fn_method_simulation_elapsed(RR_CLONE(simulation, self), &status));
}

static inline rr_answer rr_simulation_settle(uint64_t self, uint64_t token, const void *end, int32_t len) {
    RR_BYTES(uniffi_retryrmq_go_fn_method_simulation_settle(RR_CLONE(simulation, self), token, rr_lend(end, len),
                                                            &status));
}

static inline rr_answer rr_fetch_notifications(uint32_t wait_ms) {
    RR_BYTES(uniffi_retryrmq_go_fn_func_fetch_notifications(wait_ms, &status));
}

static inline rr_answer rr_wake_fetcher(void) {
    RR_NOTHING(uniffi_retryrmq_go_fn_func_wake_fetcher(&status));
}

static inline rr_answer rr_answer_credentials(uint64_t request, const void *answer, int32_t len) {
    RR_NOTHING(uniffi_retryrmq_go_fn_func_answer_credentials(request, rr_lend(answer, len), &status));
}

static inline rr_answer rr_log_lines(int8_t least) {
    RR_NOTHING(uniffi_retryrmq_go_fn_func_log_lines(least, &status));
}

static inline rr_answer rr_history(const void *headers, int32_t len) {
    RR_BYTES(uniffi_retryrmq_go_fn_func_history(rr_lend(headers, len), &status));
}

static inline rr_answer rr_read_policy(const void *text, int32_t len) {
    RR_BYTES(uniffi_retryrmq_go_fn_func_read_policy(rr_lend(text, len), &status));
}

static inline rr_answer rr_duration_text(uint64_t nanoseconds) {
    RR_BYTES(uniffi_retryrmq_go_fn_func_duration_text(nanoseconds, &status));
}

static inline rr_answer rr_version(void) {
    RR_BYTES(uniffi_retryrmq_go_fn_func_version(&status));
}

static inline int64_t rr_live_objects(void) {
    RustCallStatus status = {0};
    return uniffi_retryrmq_go_fn_func_live_objects(&status);
}

// The name of the first thing in which the library differs from the header; NULL if it is the right one.
static inline const char *rr_mismatch(void) {
#define CONTRACT(expected) \
    if (ffi_retryrmq_go_uniffi_contract_version() != expected) return "the version of UniFFI's contract";
#define CHECKSUM(function, expected) \
    if (function() != expected) return #function;
#include "checksums.h"
#undef CONTRACT
#undef CHECKSUM
    return NULL;
}
