// What a session needs of whoever proposes tokens: a draft context, or a drafter of the caller's.
#pragma once

#include "verify.h"

#include <cstddef>

struct llama_sampler;

namespace dspark {

class snapshot_reader;
class snapshot_writer;

struct proposal {
    std::vector<int32_t> ids;               // [n] target ids
    std::vector<float>   confidence_logits; // [n], or empty
    std::vector<float>   logits;            // [n][Vd] in draft rows, if asked for

    void truncate(std::size_t n) {
        if (n < ids.size()) {
            logits.resize(logits.size() / ids.size() * n);
            ids.resize(n);
            confidence_logits.resize(confidence_logits.empty() ? 0 : n);
        }
    }
};

// Tokens to be drawn from the drafter's distributions, as a sampler would from the target's.
struct drawing {
    std::vector<llama_sampler *> steps; // what shapes a distribution before the draw
    uint64_t                     seed = 0;
};

class drafter {
  public:
    virtual ~drafter() = default;

    // The longest proposal it ever makes.
    virtual int32_t n_draft_max() const = 0;

    // The target layers whose inputs it wants as features; empty: none.
    virtual const std::vector<int32_t> & target_layers() const = 0;

    // Features of the next n_rows positions, [n_rows][m*H].
    virtual void append(const float * features, int32_t n_rows) = 0;

    // Forgets the positions from n_past on.
    virtual void rewind(int32_t n_past) = 0;

    // Forgets everything and goes on at position pos, of whose predecessors it will never see the features.
    virtual void restart(int32_t pos) = 0;

    // The position of the next features.
    virtual int32_t n_past() const = 0;

    // At most n_max tokens to follow anchor, which stands at position n_past().  how null: the likeliest, one after the other; else they
    // are drawn, for drafters that can.
    virtual void propose(int32_t anchor, int32_t n_max, const drawing * how, proposal & out) = 0;
    virtual bool can_draw() const { return false; }

    // What token k of the last proposal, which was drawn, was drawn from given those before it; in target ids.
    virtual void drawn_from(int32_t /* k */, distribution & /* out */) const {}

    // Null, or why it cannot propose for the present sequence (static text).
    virtual const char * unable_reason() const { return nullptr; }

    // Its weights, as a number that differs for others; 0: what it holds of a sequence cannot be saved.
    virtual uint64_t fingerprint() const { return 0; }

    // What it holds of the sequence.  load() takes back what save() of a drafter with the same fingerprint wrote at n_past(), all of
    // it or, throwing, nothing.
    virtual void save(snapshot_writer &) {}
    virtual void load(snapshot_reader &, int32_t /* n_past */) {}

    // Microseconds spent inside ggml's graph compute since construction.
    virtual int64_t compute_us() const { return 0; }
};

} // namespace dspark
