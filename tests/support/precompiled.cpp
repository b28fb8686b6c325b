// SPDX-License-Identifier: Apache-2.0
//
// Empty: the precompiled header of the tests is built with it, see ../CMakeLists.txt.
int main() {}
