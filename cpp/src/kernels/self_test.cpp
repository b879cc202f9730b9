#include "self_test.h"

namespace dspark::kernels {

std::string self_test() { return ""; }

} // namespace dspark::kernels
