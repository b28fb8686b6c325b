#include "case.hpp"
namespace backplane::conformance {
#define PENDING(group) __attribute__((weak)) std::vector<Case> group##_cases() { return {}; }
PENDING(load) PENDING(options) PENDING(init) PENDING(p2p) PENDING(collectives) PENDING(order) PENDING(async) PENDING(groups)
PENDING(time) PENDING(abort) PENDING(death) PENDING(hygiene) PENDING(hostile) PENDING(errors) PENDING(process) PENDING(determinism)
}
