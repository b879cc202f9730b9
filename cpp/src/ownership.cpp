#include "ownership.h"

#include <mutex>
#include <set>

namespace dspark {

namespace {

std::mutex                owned_mutex;
std::set<llama_context *> owned_contexts;

} // namespace

ownership::ownership(llama_context * ctx) : ctx_(ctx) {
    std::lock_guard<std::mutex> lock(owned_mutex);
    if (!owned_contexts.insert(ctx_).second) {
        fail(DSPARK_ERROR_STATE, "the target's context already has a session; close that one first");
    }
}

ownership::~ownership() {
    std::lock_guard<std::mutex> lock(owned_mutex);
    owned_contexts.erase(ctx_);
}

} // namespace dspark
