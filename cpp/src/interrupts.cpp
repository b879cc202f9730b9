#include "interrupts.h"

#include "llama_binding.h"

#include <atomic>
#include <thread>

#ifndef _WIN32
#include <signal.h>
#endif

namespace dspark::interrupts {

namespace {

std::atomic<bool> noted{false}; // a signal has come since begin()
thread_local bool watching = false;
thread_local bool given_up = false;

// llama.cpp reports a batch that was given up as an error, by three lines.  They are not the user's to see, and a log callback
// in Python would have to run the signal's handler, whose exception cannot leave it.
ggml_log_callback log_before = nullptr;
void *            log_data   = nullptr;
std::thread::id   log_thread;

void drop_own_lines(ggml_log_level level, const char * text, void *) {
    if (std::this_thread::get_id() != log_thread) {
        log_before(level, text, log_data);
    }
}

void silence() {
    llama_log_get(&log_before, &log_data);
    log_thread = std::this_thread::get_id();
    llama_log_set(drop_own_lines, nullptr);
}

void unsilence() {
    llama_log_set(log_before, log_data);
}

#ifndef _WIN32

const int signals[] = {SIGINT, SIGTERM};

struct sigaction handled[2]; // what the host does about them

void on_signal(int number, siginfo_t * info, void * context) {
    const struct sigaction & host = handled[number == signals[0] ? 0 : 1];
    if (host.sa_flags & SA_SIGINFO) {
        host.sa_sigaction(number, info, context);
    } else {
        host.sa_handler(number);
    }
    noted = true; // now that the host knows: what was given up returns to it
}

bool is_ours(const struct sigaction & action) {
    return (action.sa_flags & SA_SIGINFO) && action.sa_sigaction == on_signal;
}

void install() {
    for (int i = 0; i < 2; ++i) {
        struct sigaction action;
        if (sigaction(signals[i], nullptr, &action) != 0 || is_ours(action) ||
            (!(action.sa_flags & SA_SIGINFO) && (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN))) {
            continue;
        }
        handled[i] = action;
        action.sa_flags |= SA_SIGINFO;
        action.sa_sigaction = on_signal;
        sigaction(signals[i], &action, nullptr);
    }
}

void uninstall() {
    for (int i = 0; i < 2; ++i) {
        struct sigaction action;
        // a handler may have installed another one
        if (sigaction(signals[i], nullptr, &action) == 0 && is_ours(action)) {
            sigaction(signals[i], &handled[i], nullptr);
        }
    }
}

#else

void install() {}
void uninstall() {}

#endif

} // namespace

void begin() {
    noted    = false;
    given_up = false;
    watching = true;
    install();
}

bool end() {
    uninstall();
    if (given_up) {
        unsilence();
    }
    const bool was = given_up;
    watching       = false;
    given_up       = false;
    return was;
}

bool asked() {
    if (!watching || !noted) {
        return false;
    }
    if (!given_up) {
        given_up = true;
        silence();
    }
    return true;
}

} // namespace dspark::interrupts
