// AVX2 as in table_avx2.cpp, but quantised weights are multiplied by VNNI's 256-bit instructions (Alder Lake, Zen 5 and later).
#include "kernel_table.h"

#if defined(__AVXVNNI__) || (defined(_MSC_VER) && defined(__AVX2__))

#    include "quant_kernel.h"
#    include "vec_avx_vnni.h"

namespace dspark::kernels {

const kernel_table * table_avx_vnni() {
    static const kernel_table table = [] {
        kernel_table t = *table_avx2();
        t.name         = "avx_vnni";
        t.q8_bias      = avx_vnni::q8_bias;
        fill_all_quant<avx_vnni>(t);
        return t;
    }();
    return &table;
}

} // namespace dspark::kernels

#else

const dspark::kernels::kernel_table * dspark::kernels::table_avx_vnni() { return nullptr; }

#endif
