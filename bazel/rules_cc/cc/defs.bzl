"""The rules that Bazel 4 has built in, under rules_cc's address.

Stands in for rules_cc where Bazel cannot download it, see .ci/bazel.
"""

cc_binary = native.cc_binary
cc_import = native.cc_import
cc_library = native.cc_library
cc_test = native.cc_test
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite
