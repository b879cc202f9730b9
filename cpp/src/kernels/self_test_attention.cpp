#include "attention_kernels.h"
#include "self_test.h"

#include <cmath>
#include <cstring>
#include <random>

namespace dspark::kernels {

namespace {

// some keys of a second block; query heads that share K/V heads; a row that is no whole number of vectors
constexpr int64_t n_d = 20, n_q = 3, n_head = 4, n_head_kv = 2, n_kv = block_keys + 9;
constexpr float   scale = 0.25f;

// Row i attends to every key but the last n_q - 1 - i.
bool attends(int64_t i, int64_t j) { return j < n_kv - (n_q - 1 - i); }

} // namespace

std::string self_test_attention() {
    ggml_context_ptr tensors = new_meta_context(4), ops = new_meta_context(16, 16);
    ggml_tensor *    q    = ggml_new_tensor_3d(tensors.get(), GGML_TYPE_F32, n_d, n_q, n_head);
    ggml_tensor *    k    = ggml_new_tensor_3d(tensors.get(), GGML_TYPE_F32, n_d, n_kv, n_head_kv);
    ggml_tensor *    v    = ggml_new_tensor_3d(tensors.get(), GGML_TYPE_F32, n_d, n_kv, n_head_kv);
    ggml_tensor *    mask = ggml_new_tensor_2d(tensors.get(), GGML_TYPE_F16, n_kv, n_q);
    ggml_tensor *    last = ggml_view_3d(ops.get(), q, n_d, 1, n_head, q->nb[1], q->nb[2], (n_q - 1) * q->nb[1]);
    ggml_tensor *    last_mask = ggml_view_2d(ops.get(), mask, n_kv, 1, mask->nb[1], (n_q - 1) * mask->nb[1]);
    ggml_tensor *    y[]   = {ggml_flash_attn_ext(ops.get(), q, k, v, mask, scale, 0.0f, 0.0f),
                              ggml_flash_attn_ext(ops.get(), last, k, v, last_mask, scale, 0.0f, 0.0f)};
    ggml_cgraph *    graph = ggml_new_graph_custom(ops.get(), 16, false);
    for (ggml_tensor * t : y) {
        ggml_set_output(t);
        ggml_build_forward_expand(graph, t);
    }
    ggml_backend_dev_t cpu = find_device(nullptr);
    buffer_ptr         buffer(ggml_backend_alloc_ctx_tensors_from_buft(tensors.get(), ggml_backend_dev_buffer_type(cpu)));
    backend_ptr        backend = new_backend(cpu, 2);
    ggml_backend_t     raw     = backend.get();
    sched_ptr          sched(ggml_backend_sched_new(&raw, nullptr, 1, 32, false, false));
    if (!buffer || !sched || !ggml_backend_sched_alloc_graph(sched.get(), graph)) {
        return "no memory for the self-test of attention";
    }

    std::mt19937                          random(2);
    std::uniform_real_distribution<float> number(-2.0f, 2.0f);
    std::vector<float>                    values[3];
    ggml_tensor * const                   inputs[] = {q, k, v};
    for (int i = 0; i < 3; ++i) {
        values[i].resize((size_t) ggml_nelements(inputs[i]));
        for (float & x : values[i]) {
            x = number(random);
        }
        ggml_backend_tensor_set(inputs[i], values[i].data(), 0, ggml_nbytes(inputs[i]));
    }
    std::vector<uint16_t> bits((size_t) (n_q * n_kv));
    for (int64_t i = 0; i < n_q * n_kv; ++i) {
        bits[(size_t) i] = attends(i / n_kv, i % n_kv) ? 0 : 0xfc00; // -inf
    }
    ggml_backend_tensor_set(mask, bits.data(), 0, bits.size() * 2);
    if (ggml_backend_sched_graph_compute(sched.get(), graph) != GGML_STATUS_SUCCESS) {
        return "ggml could not compute the self-test of attention";
    }

    std::vector<float> out((size_t) ggml_nelements(y[0])), alone((size_t) ggml_nelements(y[1]));
    ggml_backend_tensor_get(y[0], out.data(), 0, ggml_nbytes(y[0]));
    ggml_backend_tensor_get(y[1], alone.data(), 0, ggml_nbytes(y[1]));
    for (int64_t i = 0; i < n_q; ++i) {
        for (int64_t h = 0; h < n_head; ++h) {
            const float * one = &values[0][(size_t) ((h * n_q + i) * n_d)];
            const size_t  kv  = (size_t) (h / (n_head / n_head_kv) * n_kv * n_d);
            double        total = 0, sums[n_d] = {};
            for (int64_t j = 0; j < n_kv; ++j) {
                double score = 0;
                for (int64_t d = 0; d < n_d; ++d) {
                    score += (double) scale * (double) one[d] * (double) values[1][kv + (size_t) (j * n_d + d)];
                }
                const double weight = attends(i, j) ? std::exp(score) : 0;
                total += weight;
                for (int64_t d = 0; d < n_d; ++d) {
                    sums[d] += weight * (double) values[2][kv + (size_t) (j * n_d + d)];
                }
            }
            for (int64_t d = 0; d < n_d; ++d) {
                const double got = (double) out[(size_t) ((i * n_head + h) * n_d + d)];
                if (!(std::fabs(got - sums[d] / total) <= 1e-5)) {
                    return format("the self-test of attention gave %g in place of %g", got, sums[d] / total);
                }
            }
        }
    }
    if (memcmp(alone.data(), out.data() + (n_q - 1) * n_head * n_d, alone.size() * sizeof(float)) != 0) {
        return "the self-test of attention gave a row another result alone than beside others";
    }
    return "";
}

} // namespace dspark::kernels
