// AVX-512 as in table_avx512.cpp, but for BF16 weights, which are multiplied with BF16 columns.
#include "kernel_table.h"

#if defined(__AVX512BF16__)

#    include "plain_kernel.h"
#    include "vec_avx512.h"

namespace dspark::kernels {

namespace {

struct bf16_pairs {
    using weight = uint16_t;
    using number = uint16_t;
    static constexpr int step   = 32;
    static constexpr int n_cols = avx512::plain_cols;
    static __m512i load(const weight * p) { return _mm512_loadu_si512(p); }
    static __m512i load_column(const number * p) { return _mm512_loadu_si512(p); }
    static __m512  add(__m512 acc, __m512i w, __m512i x) { return _mm512_dpbf16_ps(acc, (__m512bh) w, (__m512bh) x); }
    static void    write_column(const float * x, number * to) {
        _mm512_storeu_si512(to, (__m512i) _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x)));
    }
};

} // namespace

const kernel_table * table_avx512_bf16() {
    static const kernel_table table = [] {
        kernel_table t = *table_avx512();
        t.name         = "avx512_bf16";
        fill_plain<avx512, bf16_pairs>(t.of[GGML_TYPE_BF16]);
        return t;
    }();
    return &table;
}

} // namespace dspark::kernels

#else

const dspark::kernels::kernel_table * dspark::kernels::table_avx512_bf16() { return nullptr; }

#endif
