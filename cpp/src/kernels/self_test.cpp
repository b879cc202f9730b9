#include "self_test.h"

#include "isa.h"
#include "packed_layout.h"

#include <cmath>
#include <cstring>
#include <random>

namespace dspark::kernels {

namespace {

// One weight type: a product of n_rows x n_k weights with n_cols columns, and with the last column alone.
struct sample {
    ggml_type          type = GGML_TYPE_F32;
    std::vector<char>  rows;    // as ggml stores them
    std::vector<float> weights; // the same numbers
    ggml_tensor *      w = nullptr, * x = nullptr, * y = nullptr, * y_alone = nullptr;
};

// neither a multiple of a tile; the length is one only where a type wants it
constexpr int64_t n_rows = 39, n_cols = 11;

int64_t length_of(ggml_type type) { return format_of(type).bits ? 512 : 75; }

sample make_sample(ggml_type type, std::mt19937 & random) {
    sample                                s;
    std::uniform_real_distribution<float> number(-1.0f, 1.0f);
    const int64_t                         n_k = length_of(type);
    std::vector<float>                    wanted((size_t) (n_rows * n_k));
    for (float & v : wanted) {
        v = number(random);
    }
    s.type = type;
    s.rows.resize((size_t) n_rows * ggml_row_size(type, n_k));
    s.weights = wanted;
    if (type == GGML_TYPE_F32) {
        memcpy(s.rows.data(), wanted.data(), s.rows.size());
    } else {
        ggml_quantize_chunk(type, wanted.data(), s.rows.data(), 0, n_rows, n_k, nullptr);
        ggml_get_type_traits(type)->to_float(s.rows.data(), s.weights.data(), n_rows * n_k);
    }
    return s;
}

// Integers up to 127, which is reached in every 32 of them: 8-bit columns and BF16 lose nothing.
std::vector<float> make_columns(int64_t n_k, std::mt19937 & random) {
    std::uniform_int_distribution<int> number(-127, 127);
    std::vector<float>                 x((size_t) (n_cols * n_k));
    for (size_t i = 0; i < x.size(); ++i) {
        x[i] = i % 32 == 5 ? 127.0f : (float) number(random);
    }
    return x;
}

std::string compare(const sample & s, const std::vector<float> & x) {
    const int64_t      n_k = length_of(s.type);
    std::vector<float> y((size_t) (n_rows * n_cols)), alone((size_t) n_rows);
    ggml_backend_tensor_get(s.y, y.data(), 0, y.size() * sizeof(float));
    ggml_backend_tensor_get(s.y_alone, alone.data(), 0, alone.size() * sizeof(float));
    for (int64_t c = 0; c < n_cols; ++c) {
        for (int64_t r = 0; r < n_rows; ++r) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < n_k; ++k) {
                const double term = (double) s.weights[(size_t) (r * n_k + k)] * (double) x[(size_t) (c * n_k + k)];
                sum += term;
                size += std::fabs(term);
            }
            const double got = (double) y[(size_t) (c * n_rows + r)];
            if (!(std::fabs(got - sum) <= 1e-5 * size)) {
                return format("the self-test of the %s kernel for %s weights gave %g for a product of %g", kernels_of_this_machine()->name,
                              ggml_type_name(s.type), got, sum);
            }
        }
    }
    if (memcmp(alone.data(), y.data() + (n_cols - 1) * n_rows, alone.size() * sizeof(float)) != 0) {
        return format("the self-test of the %s kernel for %s weights gave a column another result alone than beside others",
                      kernels_of_this_machine()->name, ggml_type_name(s.type));
    }
    return "";
}

} // namespace

std::string self_test(ggml_backend_buffer_type_t packed, int & n_products) {
    std::mt19937        random(1);
    std::vector<sample> samples;
    for (int type = 0; type < GGML_TYPE_COUNT; ++type) {
        if (kernels_of_this_machine()->find((ggml_type) type)) {
            samples.push_back(make_sample((ggml_type) type, random));
        }
    }

    ggml_backend_dev_t cpu     = find_device(nullptr);
    const auto         n       = samples.size();
    ggml_context_ptr   layouts = new_meta_context(n), plain = new_meta_context(n), graph_ctx = new_meta_context(4 * n, 4 * n);
    ggml_cgraph *      graph   = ggml_new_graph_custom(graph_ctx.get(), 4 * n, false);
    for (sample & s : samples) {
        const int64_t n_k = length_of(s.type);
        s.w = ggml_new_tensor_2d(format_of(s.type).bits ? layouts.get() : plain.get(), s.type, n_k, n_rows);
        s.x = ggml_new_tensor_2d(graph_ctx.get(), GGML_TYPE_F32, n_k, n_cols);
        ggml_set_input(s.x);
        s.y       = ggml_mul_mat(graph_ctx.get(), s.w, s.x);
        s.y_alone = ggml_mul_mat(graph_ctx.get(), s.w, ggml_view_2d(graph_ctx.get(), s.x, n_k, 1, s.x->nb[1], (n_cols - 1) * s.x->nb[1]));
        for (ggml_tensor * y : {s.y, s.y_alone}) {
            ggml_set_output(y);
            ggml_build_forward_expand(graph, y);
        }
    }
    buffer_ptr     packed_weights(ggml_backend_alloc_ctx_tensors_from_buft(layouts.get(), packed));
    buffer_ptr     plain_weights(ggml_backend_alloc_ctx_tensors_from_buft(plain.get(), ggml_backend_dev_buffer_type(cpu)));
    backend_ptr    backend = new_backend(cpu, 2);
    ggml_backend_t raw     = backend.get();
    if (!packed_weights || !plain_weights) {
        return "no memory for the self-test of the kernels";
    }
    for (ggml_backend_buffer_t buffer : {packed_weights.get(), plain_weights.get()}) {
        ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    }
    for (const sample & s : samples) {
        ggml_backend_tensor_set(s.w, s.rows.data(), 0, s.rows.size());
        std::vector<char> back(s.rows.size());
        ggml_backend_tensor_get(s.w, back.data(), 0, back.size());
        if (back != s.rows) {
            return format("%s weights did not come back from their packed layout", ggml_type_name(s.type));
        }
    }

    sched_ptr sched(ggml_backend_sched_new(&raw, nullptr, 1, 8 * n, false, false));
    if (!sched || !ggml_backend_sched_alloc_graph(sched.get(), graph)) {
        return "no memory for the self-test of the kernels";
    }
    std::vector<std::vector<float>> columns;
    for (const sample & s : samples) {
        columns.push_back(make_columns(length_of(s.type), random));
        ggml_backend_tensor_set(s.x, columns.back().data(), 0, columns.back().size() * sizeof(float));
    }
    if (ggml_backend_sched_graph_compute(sched.get(), graph) != GGML_STATUS_SUCCESS) {
        return "ggml could not compute the self-test of the kernels";
    }
    for (size_t i = 0; i < n; ++i) {
        std::string problem = compare(samples[i], columns[i]);
        if (!problem.empty()) {
            return problem;
        }
    }
    n_products = (int) (2 * n);
    return "";
}

} // namespace dspark::kernels
