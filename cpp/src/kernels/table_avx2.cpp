// AVX2 with FMA and F16C.
#include "kernel_table.h"

#if defined(__AVX2__)

#    include "attention_kernel.h"
#    include "plain_kernel.h"
#    include "quant_kernel.h"
#    include "vec_avx2_pair.h"

namespace dspark::kernels {

const kernel_table * table_avx2() {
    static const kernel_table table = [] {
        kernel_table t{"avx2", avx2_pair::lanes, avx2_pair::q8_bias, attention_of<avx2>(), {}};
        fill_all_quant<avx2_pair>(t);
        fill_all_plain<avx2>(t);
        return t;
    }();
    return &table;
}

} // namespace dspark::kernels

#else

const dspark::kernels::kernel_table * dspark::kernels::table_avx2() { return nullptr; }

#endif
